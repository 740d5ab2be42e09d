"use strict";
// Everything from the server is put on the page as text (textContent); no markup is ever made from it.

function element(tag, text, attributes) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = String(text);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function append(parent, ...children) {
  for (const child of children) if (child) parent.appendChild(child);
  return parent;
}

function button(text, action, attributes) {
  const made = element("button", text, { type: "button", ...attributes });
  made.addEventListener("click", action);
  return made;
}

// The server has checked addresses already; nothing but http and https becomes a link here either.
function link(url, text) {
  let address;
  try { address = new URL(url); } catch { return element("span", url); }
  if (address.protocol !== "http:" && address.protocol !== "https:") return element("span", url);
  return element("a", text, { href: address.href, rel: "noopener noreferrer nofollow", target: "_blank" });
}

function claims(title, list) {
  if (!list.length) return null;
  const section = append(element("section", null, { class: "claims" }), element("h4", title));
  const items = element("ul");
  for (const claim of list) {
    const item = element("li", claim.text);
    append(item, document.createTextNode(" "), element("span", claim.sources.join(", "), { class: "source" }));
    items.appendChild(item);
  }
  return append(section, items);
}

function scores(parts) {
  const list = element("dl", null, { class: "scores" });
  for (const [name, value] of Object.entries(parts)) {
    const shown = name === "rank" ? String(value) : value.toFixed(3);
    append(list, append(element("div"), element("dt", name), element("dd", shown)));
  }
  return list;
}

function evidence(data) {
  const details = append(element("details"), element("summary", "Evidence"));
  const table = element("table");
  for (const entry of data.fields) {
    append(table, append(element("tr"), element("th", entry.field, { scope: "row" }), element("td", entry.value),
      element("td", entry.source, { class: "source" })));
  }
  return append(details, append(element("div", null, { class: "wide" }), table));
}

function links(data) {
  const list = element("p", null, { class: "links" });
  for (const entry of data.links) {
    append(list, link(entry.url, entry.field === "repository_link" ? "Repository" : "Directory page"),
      document.createTextNode(" "));
  }
  return data.links.length ? list : null;
}

// A text to be copied, as it stands, with its button.
function copied(content) {
  const label = "Copy";
  const made = button(label, async () => {
    try { await navigator.clipboard.writeText(content); made.textContent = "Copied"; }
    catch { made.textContent = "Select and copy by hand"; }
    setTimeout(() => { made.textContent = label; }, 2000);
  }, { "aria-label": "Copy " + content.split("\n")[0].slice(0, 80) });
  return append(element("div", null, { class: "copied" }), element("pre", content), made);
}

// What a server is in a line: `short` of the answer.
function facts(short) {
  const known = [
    short.official && "official",
    short.stars !== undefined && short.stars.toLocaleString("en") + (short.stars === 1 ? " star" : " stars"),
    short.licence || "no licence stated",
    short.language,
    short.checked,
  ];
  return element("p", known.filter(Boolean).join(" · "), { class: "facts" });
}

// With `short`, a card shows what the server does, and folds reasons and evidence.
function card(item, actions, short) {
  const made = element("article", null, { class: "card", "data-id": item.server_id });
  const title = element("h3", (item.rank ? item.rank + ". " : "") + item.name);
  append(title, element("span", "id " + item.server_id, { class: "id" }));
  if (short && short.warning) append(title, element("strong", short.warning, { class: "warning" }));
  append(made, title, element("blockquote", item.description));
  if (short) append(made, facts(short), short.start ? copied(short.start) : null);
  append(made, links(item.evidence));
  const reasons = [["why", "Why"], ["tradeoffs", "Trade-offs"], ["adoption", "How to adopt"]]
    .map(([key, name]) => claims(name, item[key] || []));
  const place = short ? append(element("details"), element("summary", "Why, trade-offs, scores")) : made;
  append(place, ...reasons, scores(item.evidence.scores));
  if (short) append(made, place);
  return append(made, evidence(item.evidence), actions);
}

function comparison(turn) {
  const table = element("table");
  const head = append(element("tr"), element("th", "", { scope: "col" }));
  for (const server of turn.servers) append(head, element("th", server.name + " (id " + server.server_id + ")", { scope: "col" }));
  append(table, head);
  for (const row of turn.table) {
    const line = append(element("tr"), element("th", row.field, { scope: "row" }));
    for (const value of row.values) append(line, element("td", value || "–"));
    append(table, line);
  }
  return append(element("div", null, { class: "wide" }), table);
}

function removals(answer) {
  if (!answer.removals.length) return null;
  const details = append(element("details"), element("summary", "What the filters removed (" + answer.kept + " servers meet all)"));
  const list = element("ul");
  for (const item of answer.removals) {
    const best = item.best.length ? "; best of them: id " + item.best.join(", id ") : "";
    const unknown = item.unknown ? "; " + item.unknown + " kept although the catalogue does not say" : "";
    append(list, element("li", item.constraint + " " + item.wanted + ": " + item.removed + " removed, " + item.in_pool +
      " of the best-ranked" + best + unknown));
  }
  return append(details, list);
}
