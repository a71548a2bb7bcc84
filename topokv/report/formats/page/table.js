"use strict";
// The rows arrive by column. A column's texts lie in sorted order and its cells are their places,
// so that a place both says what to show and how to sort; -1 is an empty cell, which sorts last.
(() => {
  const data = JSON.parse(document.getElementById("rows-data").textContent);
  const table = document.getElementById("rows-table");
  const head = table.querySelector("thead tr");
  const body = table.querySelector("tbody");
  const count = document.getElementById("rows-count");
  const more = document.getElementById("rows-more");
  const wide = document.getElementById("rows-wide");
  const search = document.getElementById("rows-search");
  const filters = [...document.querySelectorAll("select[data-column]")];
  const PAGE = 100;
  const state = { sort: null, down: false, limit: PAGE };

  const place = (column, row) => (column.cells === null ? 0 : column.cells[row]);
  const text = (column, row) => {
    const at = place(column, row);
    return at < 0 ? "" : column.texts[at];
  };
  const byName = new Map(data.columns.map((column) => [column.name, column]));

  function rowsShown() {
    const wanted = filters
      .filter((select) => select.value !== "")
      .map((select) => [byName.get(select.dataset.column), select.value]);
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (let row = 0; row < data.count; row++) {
      if (!wanted.every(([column, value]) => text(column, row) === value)) continue;
      if (words.length > 0) {
        const all = data.columns.map((column) => text(column, row)).join("\n").toLowerCase();
        if (!words.every((word) => all.includes(word))) continue;
      }
      rows.push(row);
    }
    return sorted(rows);
  }

  function sorted(rows) {
    const column = byName.get(state.sort);
    if (!column) return rows;
    const sign = state.down ? -1 : 1;
    return rows.sort((a, b) => {
      const left = place(column, a), right = place(column, b);
      if (left === right) return a - b;
      if (left < 0 || right < 0) return left < 0 ? 1 : -1;
      return sign * (left - right);
    });
  }

  function cell(tag, column, content) {
    const element = document.createElement(tag);
    element.className = column.classes;
    if (content !== null) element.textContent = content;
    return element;
  }

  function drawHead(columns) {
    head.replaceChildren(...columns.map((column) => {
      const th = cell("th", column, null);
      const button = document.createElement("button");
      button.type = "button";
      button.title = column.meaning;
      // A long name may break after an underscore.
      column.name.split(/(?<=_)/).forEach((part) => {
        button.append(part, document.createElement("wbr"));
      });
      button.addEventListener("click", () => {
        state.down = state.sort === column.name ? !state.down : column.isNumber;
        state.sort = column.name;
        draw();
        head.querySelector(`th[data-name="${CSS.escape(column.name)}"] button`).focus();
      });
      th.scope = "col";
      th.dataset.name = column.name;
      if (state.sort === column.name) {
        th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      }
      th.append(button);
      return th;
    }));
  }

  function draw() {
    const columns = data.columns.filter((column) => wide.checked || column.isMain);
    table.classList.toggle("brief", !wide.checked);
    const rows = rowsShown();
    drawHead(columns);
    body.replaceChildren(...rows.slice(0, state.limit).map((row) => {
      const tr = document.createElement("tr");
      tr.append(...columns.map((column) => cell("td", column, text(column, row))));
      return tr;
    }));
    const shown = Math.min(rows.length, state.limit);
    count.textContent = `${shown} of ${data.count} rows` +
      (rows.length < data.count ? `, ${rows.length} match` : "");
    more.hidden = shown === rows.length;
  }

  const again = () => { state.limit = PAGE; draw(); };
  filters.forEach((select) => select.addEventListener("change", again));
  search.addEventListener("input", again);
  wide.addEventListener("change", draw);
  more.addEventListener("click", () => { state.limit = Infinity; draw(); });
  draw();
})();
