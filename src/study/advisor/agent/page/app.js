"use strict";
// The conversation: what is sent, what comes back, and the constraints as chips. cards.js draws.

const log = document.getElementById("log");
const chips = document.getElementById("chips");
const status = document.getElementById("status");
const text = document.getElementById("text");
const state = { name: null, catalogue: null, specification: null, busy: false };
const LISTS = { languages: "language", unwanted_languages: "not language", platforms: "platform", licences: "licence",
  unwanted_licences: "not licence", preferences: "prefer" };
const VALUES = { languages: "languages", unwanted_languages: "languages", platforms: "platforms", licences: "licences",
  unwanted_licences: "licences", preferences: "preferences" };
const CONTRARY = { languages: "unwanted_languages", unwanted_languages: "languages", licences: "unwanted_licences",
  unwanted_licences: "licences" };
const MOST_STARS = 10_000_000;

async function post(path, body, name = state.name) {
  const headers = { "Content-Type": "application/json" };
  if (name) headers["X-Conversation"] = name;
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  let data = {};
  try { data = await reply.json(); } catch { /* said below */ }
  if (reply.status === 404 && name === state.name) state.name = null;
  if (!reply.ok) throw new Error([data.error || "no answer", data.fix].filter(Boolean).join(" – "));
  return data;
}

async function begin() {
  const data = await post("/api/conversations", {});
  state.name = data.conversation;
  state.catalogue = data.catalogue;
  document.getElementById("about").textContent =
    "Which MCP servers help with your task? " + data.catalogue.servers + " servers of " + data.catalogue.dataset +
    ", ranked by " + data.catalogue.system + ".";
}

async function ask(path, body, shown) {
  if (state.busy) return;
  state.busy = true;
  status.textContent = "Searching…";
  if (shown) say("you", element("p", shown));
  try {
    if (!state.name) await begin();
    show(await post(path, body));
    status.textContent = "";
  } catch (error) {
    status.textContent = error.message;
  } finally {
    state.busy = false;
  }
}

function say(who, ...children) {
  const entry = element("li", null, { class: who });
  append(entry, element("span", who === "you" ? "You" : "T2MAgent", { class: "who" }), ...children);
  log.appendChild(entry);
  entry.scrollIntoView({ block: "start" });
}

function send(message) {
  const content = message.trim();
  if (!content || state.busy) return;
  document.getElementById("examples").hidden = true;
  text.value = "";
  ask("/api/messages", { text: content }, content);
}

function show(turn) {
  const parts = [element("p", turn.message, { class: "message" })];
  if (turn.options.length) {
    const options = element("p", null, { class: "options" });
    for (const option of [...turn.options, "any"]) append(options, button(option, () => send(option)));
    parts.push(options);
  }
  if (turn.answer) parts.push(...answer(turn.answer, turn.number));
  if (turn.kind === "comparison") parts.push(comparison(turn), claims("When to prefer which", turn.claims));
  if (turn.config) parts.push(copied(turn.config));
  if (turn.kind === "setup" || turn.kind === "reasons") parts.push(claims("", turn.claims), ...turn.servers.map((item) => card(item, null)));
  state.specification = turn.specification;
  say("agent", ...parts);
  draw();
}

function answer(found, number) {
  const chosen = new Set();  // of this answer alone: the boxes of earlier ones keep theirs
  const cards = element("div", null, { class: "cards" });
  for (const item of found.recommendations) {
    append(cards, card(item, actions(item, number, chosen), found.short.find((one) => one.server_id === item.server_id)));
  }
  const parts = [removals(found), cards, claims("When to prefer which", found.comparison),
    claims("Together", found.composition)];
  if (found.recommendations.length > 1) {
    parts.push(append(element("p", null, { class: "options" }), button("Compare the chosen servers", () => {
      if (chosen.size) send("compare id " + [...chosen].join(" and "));
      else status.textContent = "Choose servers first: tick \u201ccompare\u201d on their cards.";
    })));
  }
  for (const option of found.relax) {
    const label = "Drop the constraint on " + option.constraint + " (" + option.left + " left)";
    parts.push(append(element("p", null, { class: "options" }), button(label, () => send("drop the " + option.constraint))));
  }
  const checks = found.checks;
  const said = [
    checks.claims && checks.claims + " sentences of " + checks.author + " checked against the evidence, " + checks.removed + " removed",
    checks.fallback && "the rules answered: " + checks.problems.join("; "),
    checks.reading && "the rules read the request: " + checks.reading,
    checks.dropped && checks.dropped + " unknown values left out",
  ].filter(Boolean);
  if (said.length) parts.push(element("p", said.join("; "), { class: "source" }));
  return parts;
}

// A card belongs to the conversation and the answer that showed it, also after others have followed.
function actions(item, number, chosen) {
  const row = element("p", null, { class: "actions" });
  const conversation = state.name;
  const name = "choose-" + item.server_id + "-" + log.children.length;
  const box = element("input", null, { type: "checkbox", id: name });
  box.addEventListener("change", () => box.checked ? chosen.add(item.server_id) : chosen.delete(item.server_id));
  append(row, box, element("label", "compare", { for: name }), button("Set-up", () => send("set up id " + item.server_id)));
  const outcome = element("span", null, { class: "outcome", hidden: "" });
  const judge = (kind, label, group) => {
    const made = button(label, async () => {
      try {
        await post("/api/feedback", { kind, answer: number, server_id: item.server_id }, conversation);
        const pressed = group === row ? row.querySelectorAll("[aria-pressed]") : group.querySelectorAll("[aria-pressed]");
        for (const other of pressed) other.setAttribute("aria-pressed", String(other === made));
        if (group === row) outcome.hidden = kind !== "accepted";
        status.textContent = "Noted on this machine: " + label.toLowerCase() + ", id " + item.server_id + ".";
      } catch (error) { status.textContent = error.message; }
    }, { "aria-pressed": "false" });
    append(group, made);
  };
  judge("accepted", "Useful", row);
  judge("rejected", "Not useful", row);
  judge("worked", "It worked", outcome);
  judge("failed", "It failed", outcome);
  return append(row, outcome);
}

// Chips

function changed(edit) {
  const copy = {};
  for (const key of [...Object.keys(LISTS), "official", "stars", "domain"]) copy[key] = structuredClone(state.specification[key]);
  edit(copy);
  ask("/api/constraints", copy, null);
}

function chip(label, remove, deny) {
  return append(element("span", null, { class: "chip" }), element("span", label),
    button("×", remove, { "aria-label": "Remove " + label }), deny || null);
}

// Turns a wanted value into an unwanted one, and back.
function denial(key, value) {
  const other = CONTRARY[key];
  if (!other) return null;
  const denied = key.startsWith("unwanted_");
  return button("not", () => changed((copy) => {
    copy[key] = copy[key].filter((kept) => kept !== value);
    copy[other].push(value);
  }), { "aria-pressed": String(denied), "aria-label": "Not " + LISTS[key].replace("not ", "") + ": " + value });
}

function field(label, input, read) {
  const name = "set-" + label.replaceAll(" ", "-");
  input.id = name;
  input.addEventListener("change", () => changed((copy) => read(copy, input)));
  return append(element("span", null, { class: "field" }), element("label", label, { for: name }), input);
}

function starsField() {
  const input = element("input", null, { type: "number", min: "0", max: String(MOST_STARS), step: "1", inputmode: "numeric" });
  input.value = String(state.specification.stars);
  return field("least stars", input, (copy) => {
    copy.stars = Math.min(MOST_STARS, Math.max(0, Math.floor(Number(input.value) || 0)));
  });
}

function officialField() {
  const input = element("input", null, { type: "checkbox" });
  input.checked = state.specification.official;
  return field("official", input, (copy) => { copy.official = input.checked; });
}

function domainField() {
  const input = element("select", null);
  append(input, element("option", "any", { value: "" }));
  for (const value of state.catalogue.domains) append(input, element("option", value, { value }));
  input.value = state.specification.domain;
  return field("domain", input, (copy) => { copy.domain = input.value; });
}

function chooser(key, name) {
  const known = state.catalogue[VALUES[key]].filter((value) => !state.specification[key].includes(value));
  if (!known.length) return null;
  const made = element("select", null, { "aria-label": "Add " + name });
  append(made, element("option", "+ " + name, { value: "" }));
  for (const value of known) append(made, element("option", value, { value }));
  made.addEventListener("change", () => made.value && changed((copy) => {
    copy[key].push(made.value);
    const other = "unwanted_" + key;
    if (copy[other]) copy[other] = copy[other].filter((value) => value !== made.value);
  }));
  return made;
}

function draw() {
  chips.replaceChildren();
  const wanted = state.specification;
  if (!wanted || !wanted.intent) return;
  for (const [key, name] of Object.entries(LISTS)) {
    for (const value of wanted[key]) {
      const remove = () => changed((copy) => { copy[key] = copy[key].filter((other) => other !== value); });
      append(chips, chip(name + ": " + value, remove, denial(key, value)));
    }
  }
  if (wanted.official) append(chips, chip("official", () => changed((copy) => { copy.official = false; })));
  if (wanted.stars) append(chips, chip("stars ≥ " + wanted.stars, () => changed((copy) => { copy.stars = 0; })));
  if (wanted.domain) append(chips, chip("domain: " + wanted.domain, () => changed((copy) => { copy.domain = ""; })));
  for (const key of ["languages", "platforms", "licences", "preferences"]) append(chips, chooser(key, LISTS[key]));
  append(chips, starsField(), officialField(), domainField());
}

document.getElementById("composer").addEventListener("submit", (event) => { event.preventDefault(); send(text.value); });
for (const example of document.querySelectorAll("#examples button")) {
  example.addEventListener("click", () => send(example.textContent));
}
document.getElementById("undo").addEventListener("click", () => send("undo"));
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(text.value); }
});
begin().catch((error) => { status.textContent = error.message; });
text.focus();
