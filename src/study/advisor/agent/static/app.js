"use strict";
// The conversation: what is sent, what comes back, and the limits as a form. Everything from the server is put on the
// page as text (textContent); no markup is ever made from it.

const log = document.getElementById("log");
const form = document.getElementById("limits");
const status = document.getElementById("status");
const text = document.getElementById("text");
const state = { name: null, catalogue: null, limits: null, busy: false };
const MOST_STARS = 10_000_000;

function element(tag, content, attributes) {
  const made = document.createElement(tag);
  if (content !== undefined && content !== null) made.textContent = String(content);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function append(parent, ...children) {
  for (const child of children) if (child) parent.appendChild(child);
  return parent;
}

function button(label, action, attributes) {
  const made = element("button", label, { type: "button", ...attributes });
  made.addEventListener("click", action);
  return made;
}

// Nothing but http and https becomes a link.
function link(url, label) {
  let address;
  try { address = new URL(url); } catch { return element("span", url); }
  if (address.protocol !== "http:" && address.protocol !== "https:") return element("span", url);
  return element("a", label, { href: address.href, rel: "noopener noreferrer nofollow", target: "_blank" });
}

async function post(path, body, name = state.name) {
  const headers = { "Content-Type": "application/json" };
  if (name) headers["X-Conversation"] = name;
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  let data = {};
  try { data = await reply.json(); } catch { /* said below */ }
  if (reply.status === 404 && name === state.name) state.name = null;
  if (!reply.ok) throw new Error([data.error || "no answer", data.fix].filter(Boolean).join(" \u2013 "));
  return data;
}

async function begin() {
  const data = await post("/api/conversations", {});
  state.name = data.conversation;
  state.catalogue = data.catalogue;
  document.getElementById("about").textContent = "Which MCP servers help with your task? " +
    data.catalogue.servers + " servers of " + data.catalogue.catalogue + ", ranked by " + data.catalogue.system + ".";
}

async function ask(path, body, shown, draw = show) {
  if (state.busy) return;
  state.busy = true;
  status.textContent = "Searching\u2026";
  if (shown) say("you", element("p", shown));
  try {
    if (!state.name) await begin();
    draw(await post(path, body));
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

function statements(list, title) {
  if (!list.length) return null;
  const items = element("ul");
  for (const said of list) {
    append(items, append(element("li", said.text + " "), element("span", said.field, { class: "source" })));
  }
  return append(element("details"), element("summary", title), items);
}

function advised(list) {
  const advice = statements(list, "When to prefer which");
  if (advice) advice.open = true;
  return advice;
}

function show(turn) {
  const chosen = new Set();  // of this answer alone
  const cards = element("div", null, { class: "cards" });
  for (const server of turn.servers) append(cards, card(server, actions(server, turn.number, chosen)));
  const first = turn.servers.length ? "" : turn.fits || turn.left_out ? "No server that fits is within the limits."
    : "Nothing in this catalogue fits. Say what is to be done, with the product's name if there is one.";
  const notes = [first, ...turn.notes, turn.left_out ? "The limits leave out " + turn.left_out + " servers that fit." : "",
    turn.problem ? "Rules answered: " + turn.problem : ""].filter(Boolean);
  const parts = [...notes.map((note) => element("p", note, { class: "message" })), cards];
  parts.push(advised(turn.statements));
  const row = element("p", null, { class: "options" });
  if (turn.question) {
    append(row, element("span", turn.question.text));
    for (const option of turn.question.options) append(row, button(option, () => answered(turn.question.limit, option)));
  }
  if (turn.servers.length > 1) append(row, button("Compare the chosen servers", () => {
    if (chosen.size > 1) ask("/api/compare", { server_ids: [...chosen] }, null, (data) => say("agent", comparison(data)));
    else status.textContent = "Choose servers first: tick \u201ccompare\u201d on two cards.";
  }));
  if (state.catalogue.model) append(row, button("Say it anew", () => ask("/api/regenerate", {}, null)));
  if (row.children.length) parts.push(row);
  if (turn.author !== "template") parts.push(element("p", "Worded by " + turn.author + ", checked against the fields.", { class: "source" }));
  state.limits = turn.limits;
  say("agent", ...parts);
  draw();
}

function answered(limit, option) {
  changed((limits) => { limits[limit] = Array.isArray(limits[limit]) ? [option] : option; });
}

function facts(server) {
  const known = [server.official && "official",
    server.stars !== undefined && server.stars.toLocaleString("en") + (server.stars === 1 ? " star" : " stars"),
    server.licence || "no licence stated", server.language, server.checked];
  return element("p", known.filter(Boolean).join(" \u00b7 "), { class: "facts" });
}

function copied(content) {
  const made = button("Copy", async () => {
    try { await navigator.clipboard.writeText(content); made.textContent = "Copied"; }
    catch { made.textContent = "Select and copy by hand"; }
    setTimeout(() => { made.textContent = "Copy"; }, 2000);
  }, { "aria-label": "Copy " + content.split("\n")[0].slice(0, 80) });
  return append(element("div", null, { class: "copied" }), element("pre", content), made);
}

function card(server, row) {
  const title = element("h3", (server.rank ? server.rank + ". " : "") + server.name);
  append(title, element("span", "id " + server.server_id, { class: "id" }));
  if (server.warning) append(title, element("strong", server.warning, { class: "warning" }));
  const made = append(element("article", null, { class: "card" }), title, element("blockquote", server.does || ""), facts(server));
  if (server.start) append(made, copied(server.start));
  else if (server.url) append(made, append(element("p"), link(server.url, "Repository")));
  return append(made, statements(server.said || [], "Why, what speaks against it, how to start it"), row);
}

function comparison(data) {
  const table = element("table");
  const head = append(element("tr"), element("th", "", { scope: "col" }));
  for (const server of data.servers) append(head, element("th", server.name + " (id " + server.server_id + ")", { scope: "col" }));
  append(table, head);
  for (const row of data.table) {
    const line = append(element("tr"), element("th", row.field, { scope: "row" }));
    for (const value of row.values) append(line, element("td", value || "\u2013"));
    append(table, line);
  }
  return append(element("div", null, { class: "wide" }), table, advised(data.statements));
}

// A card belongs to the conversation and the answer that showed it, also after others have followed.
function actions(server, number, chosen) {
  const row = element("p", null, { class: "actions" });
  const conversation = state.name;
  const name = "choose-" + number + "-" + server.rank;
  const box = element("input", null, { type: "checkbox", id: name });
  box.addEventListener("change", () => box.checked ? chosen.add(server.server_id) : chosen.delete(server.server_id));
  const client = element("select", null, { "aria-label": "Client of " + server.name });
  for (const known of state.catalogue.clients) append(client, element("option", known, { value: known }));
  client.value = "json";
  append(row, box, element("label", "compare", { for: name }), client, button("Set-up", () =>
    ask("/api/install", { server_id: server.server_id, client: client.value }, null, (data) =>
      say("agent", ...installation(data)))));
  for (const [kind, label] of [["accepted", "Useful"], ["rejected", "Not useful"], ["worked", "It worked"], ["failed", "It failed"]]) {
    const made = button(label, async () => {
      try {
        await post("/api/feedback", { kind, answer: number, server_id: server.server_id }, conversation);
        for (const other of row.querySelectorAll("[aria-pressed]")) other.setAttribute("aria-pressed", String(other === made));
        status.textContent = "Noted on this machine: " + label.toLowerCase() + ", id " + server.server_id + ".";
      } catch (error) { status.textContent = error.message; }
    }, { "aria-pressed": "false" });
    append(row, made);
  }
  return row;
}

function installation(data) {
  const lines = [data.warning && "Warning: " + data.warning, "Start: " + data.start,
    !data.version_pinned && "No source names a version; study install pins the latest.",
    data.fill_in.length && "Fill in: " + data.fill_in.join(", ")];
  return [...lines.filter(Boolean).map((line) => element("p", line, { class: "message" })),
    copied(JSON.stringify(data.config, null, 2))];
}

// The form of limits

function changed(edit) {
  const copy = structuredClone(state.limits);
  edit(copy);
  ask("/api/limits", copy, null);
}

function field(label, input, read) {
  input.id = "set-" + label.replaceAll(" ", "-");
  input.addEventListener("change", () => changed((limits) => read(limits, input)));
  return append(element("span", null, { class: "field" }), element("label", label, { for: input.id }), input);
}

function choice(label, key, values, value, read) {
  const input = element("select", null);
  for (const known of ["", ...new Set([value, ...values].filter(Boolean))]) append(input, element("option", known || "any", { value: known }));
  input.value = value;
  return field(label, input, read || ((limits) => { limits[key] = input.value ? [input.value] : []; }));
}

function draw() {
  const limits = state.limits;
  const stars = element("input", null, { type: "number", min: "0", max: String(MOST_STARS), step: "1", inputmode: "numeric" });
  stars.value = String(limits.stars);
  const official = element("input", null, { type: "checkbox" });
  official.checked = limits.official;
  form.replaceChildren(
    choice("language", "languages", state.catalogue.languages, limits.languages[0] || ""),
    choice("not language", "unwanted_languages", state.catalogue.languages, limits.unwanted_languages[0] || ""),
    choice("licence", "licences", state.catalogue.licences, limits.licences[0] || ""),
    choice("not licence", "unwanted_licences", state.catalogue.licences, limits.unwanted_licences[0] || ""),
    choice("runs", "place", ["local", "remote"], limits.place, (copy, input) => { copy.place = input.value; }),
    field("least stars", stars, (copy) => { copy.stars = Math.min(MOST_STARS, Math.max(0, Math.floor(Number(stars.value) || 0))); }),
    field("official", official, (copy) => { copy.official = official.checked; }));
}

document.getElementById("composer").addEventListener("submit", (event) => { event.preventDefault(); send(text.value); });
for (const example of document.querySelectorAll("#examples button")) {
  example.addEventListener("click", () => send(example.textContent));
}
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(text.value); }
});
begin().catch((error) => { status.textContent = error.message; });
text.focus();
