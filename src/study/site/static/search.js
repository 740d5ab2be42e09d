// The search: INDEX (search-index.js) holds [title, address, text] of every section of every page.
"use strict";

const LIMIT = 60;
const box = document.getElementById("words");
const sections = INDEX.map((entry) => [entry, entry[0].toLowerCase(), entry[2].toLowerCase()]);

const excerpt = (text, word) => {
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 60);
  return (at ? "… " : "") + text.slice(at, at + 220) + (text.length > at + 220 ? " …" : "");
};

const search = () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const [entry, title, text] of words.length ? sections : []) {
    if (!words.every((word) => title.includes(word) || text.includes(word))) continue;
    found.push([words.filter((word) => title.includes(word)).length, entry]);
  }
  found.sort(([a], [b]) => b - a);
  document.getElementById("count").textContent = words.length ? `${found.length} passages` : "";
  document.getElementById("found").replaceChildren(
    ...found.slice(0, LIMIT).map(([, [title, address, text]]) => {
      const link = document.createElement("a");
      link.href = address;
      link.textContent = title;
      const about = document.createElement("p");
      about.textContent = excerpt(text, words[0]);
      const item = document.createElement("li");
      item.append(link, about);
      return item;
    })
  );
};

document.getElementById("search").addEventListener("submit", (event) => event.preventDefault());
box.addEventListener("input", search);
box.value = new URLSearchParams(location.search).get("q") ?? "";
search();
