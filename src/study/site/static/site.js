// Tables: a click on a heading sorts, a box and lists of values filter. Without scripts the tables stay as they are.
"use strict";

const value = (row, column) => {
  const cell = row.cells[column];
  if (!cell) return "";
  const text = cell.textContent.trim();
  const number = parseFloat(cell.dataset.order ?? text.replaceAll(",", ""));
  return text === "" ? null : Number.isNaN(number) ? text : number;
};

const compare = (a, b) => {
  if (a === null || b === null) return (a === null) - (b === null); // empty cells last
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
};

const sortable = (table) => {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    if (!heading.textContent.trim()) return; // a button needs a name
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") === "descending" ? 1 : -1;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up === 1 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      rows.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : up * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
};

const labelled = (text, field) => {
  const label = document.createElement("label");
  label.append(text, field);
  return label;
};

const filterable = (table) => {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 6) return;
  const box = document.createElement("input");
  box.type = "search";
  const bar = document.createElement("div");
  bar.className = "filters";
  bar.append(labelled("filter", box));
  const lists = [];
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (!("choose" in heading.dataset)) return;
    const list = document.createElement("select");
    const values = [...new Set(rows.map((row) => row.cells[column].textContent))].sort();
    list.append(new Option("all", "\0"), ...values.map((text) => new Option(text, text)));
    lists.push([list, column]);
    bar.append(labelled(heading.textContent, list));
  });
  const shown = document.createElement("output");
  bar.append(shown);
  const update = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      const fits = lists.every(([list, column]) => list.value === "\0" || row.cells[column].textContent === list.value);
      row.hidden = !(fits && words.every((word) => text.includes(word)));
      count += !row.hidden;
    });
    shown.textContent = `${count} of ${rows.length} rows`;
  };
  bar.addEventListener("input", update);
  update();
  table.closest(".scroll").before(bar);
};

document.querySelectorAll("table").forEach((table) => {
  if (!table.tHead || !table.tBodies.length) return;
  if (table.classList.contains("data")) filterable(table);
  sortable(table);
});
