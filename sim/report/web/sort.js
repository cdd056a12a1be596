// Tables sort by the column whose head is pressed; definitions show on hover, focus and touch.

function sorts() {
  for (const button of document.querySelectorAll("button.sort")) {
    button.addEventListener("click", () => sorted(button.parentElement));
  }
  for (const head of document.querySelectorAll("th")) {
    const cell = head.closest("table").tBodies[0].rows[0];
    if (cell && cell.cells[head.cellIndex].className === "number") head.className = "number";
  }
}

function sorted(head) {
  const number = head.className === "number", was = head.getAttribute("aria-sort");
  const up = was === "none" ? !number : was === "descending", body = head.closest("table").tBodies[0];
  for (const other of head.parentElement.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (row) => {
    const cell = row.cells[head.cellIndex];
    return number ? (cell.dataset.value === "" ? NaN : Number(cell.dataset.value)) : cell.textContent;
  };
  const rows = [...body.rows].map((row) => [value(row), row]);
  const order = (a, b) => (number ? (Number.isNaN(a) ? -Infinity : a) - (Number.isNaN(b) ? -Infinity : b) || 0 : a.localeCompare(b, "en"));
  rows.sort((a, b) => (up ? order(a[0], b[0]) : order(b[0], a[0])));
  body.append(...rows.map(([, row]) => row));
}

function notes() {
  for (const one of document.querySelectorAll("[data-note]")) {
    const say = () => { const box = one.getBoundingClientRect(); hint(one.dataset.note, box.left - 10, box.bottom - 8); };
    one.addEventListener("pointerenter", say);
    one.addEventListener("focus", say);
    one.addEventListener("pointerleave", () => hint(null));
    one.addEventListener("blur", () => hint(null));
  }
}
