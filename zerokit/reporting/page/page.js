"use strict";
(() => {
  const all = (selector, of = document) => [...of.querySelectorAll(selector)];

  /* Tables that sort: the text of each heading becomes a button. */
  const valueOf = (row, place) => {
    const cell = row.cells[place];
    const value = cell.dataset.sort;
    return value === undefined ? cell.textContent.trim() : Number(value);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const sort = (table, place, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => direction * compare(valueOf(a, place), valueOf(b, place)));
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((heading, number) => {
      if (number === place) heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else heading.removeAttribute("aria-sort");
    });
  };
  for (const table of all("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => sort(table, place, heading.getAttribute("aria-sort") === "ascending" ? -1 : 1));
    });
  }

  /* Configurations: their price, filters, rank and marks. */
  const explorer = document.getElementById("explorer");
  if (!explorer) return;
  const table = document.getElementById("configurations");
  const form = explorer.querySelector("form");
  const field = (name) => document.getElementById(name);
  const { goal, deadline, budget } = explorer.dataset;
  const points = all(".point[data-row]", explorer);
  const lines = all("g[data-usd]", explorer);
  const configurations = [...table.tBodies[0].rows].map((row, number) => ({
    row,
    point: points.find((point) => point.dataset.row === String(number)),
    text: row.textContent.toLowerCase(),
    gpu: row.dataset.gpu,
    name: row.cells[1].firstChild.textContent.trim() + ", " + row.cells[2].textContent,
    isTight: row.dataset.fit !== "fits",
    isAssumed: "assumed" in row.dataset,
    hours: Number(row.dataset.hours),
    usd: Number(row.dataset.usd),
    other: Number(row.dataset.other),
    price: Number(row.dataset.price),
  }));
  const money = (usd) => usd.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const setY = (mark, percent) => {
    for (const shape of mark.querySelectorAll("line, circle, text")) {
      if (shape.tagName === "line") ["y1", "y2"].forEach((name) => shape.setAttribute(name, percent));
      else shape.setAttribute(shape.tagName === "circle" ? "cy" : "y", percent);
    }
  };

  const update = () => {
    const factor = Number(field("price").value) / 100;
    const gpu = field("priced").value;
    const only = field("only").value;
    const words = field("words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const within = field("within").checked;
    for (const one of configurations) {
      const share = gpu === "" || gpu === one.gpu ? factor : 1;
      one.rate = one.price * share;
      one.cost = one.other + (one.usd - one.other) * share;
      one.isWithin = (deadline === "" || one.hours <= Number(deadline)) && (budget === "" || one.cost <= Number(budget));
      one.isShown = (only === "" || only === one.gpu) && words.every((word) => one.text.includes(word)) && (!within || one.isWithin);
    }
    const order = goal === "time" ? ["hours", "cost"] : ["cost", "hours"];
    const ranked = [...configurations].sort((a, b) =>
      a.isAssumed - b.isAssumed || b.isWithin - a.isWithin || a.isTight - b.isTight || a[order[0]] - b[order[0]] || a[order[1]] - b[order[1]]);
    ranked.forEach((one, number) => {
      const [rank, rate, cost] = [0, 4, 6].map((place) => one.row.cells[place]);
      one.row.hidden = !one.isShown;
      rank.textContent = number + 1;
      rank.dataset.sort = number + 1;
      rate.textContent = money(one.rate);
      rate.dataset.sort = one.rate;
      cost.textContent = money(one.cost);
      cost.dataset.sort = one.cost;
    });
    const shown = ranked.filter((one) => one.isShown);
    const sorted = table.querySelector("[aria-sort]");
    if (sorted) sort(table, sorted.cellIndex, sorted.getAttribute("aria-sort") === "ascending" ? 1 : -1);
    else table.tBodies[0].append(...ranked.map((one) => one.row));
    const first = shown[0];
    field("found").textContent = `${shown.length} of ${configurations.length} configurations. ` +
      (first ? `First: ${first.name}, ${first.hours.toFixed(1)} h, $${money(first.cost)}.` : "None matches.");
    const rates = [...new Set(configurations.filter((one) => one.gpu === gpu).map((one) => one.rate))];
    field("price-now").textContent = Math.round(factor * 100) + " %" + (gpu && rates.length ? `: $${rates.sort((a, b) => a - b)[0].toFixed(2)} per GPU-hour` : "");
    move(shown);
  };

  /* Marks go up and down with the price. */
  const move = (shown) => {
    if (!points.length) return;
    const costs = (shown.length ? shown : configurations).map((one) => Math.max(one.cost, 0.01));
    const [low, high] = [Math.min(...costs) / 1.25, Math.max(...costs) * 1.25];
    const place = (usd) => 100 * (1 - Math.log(Math.max(usd, 0.01) / low) / Math.log(high / low));
    for (const line of lines) {
      const percent = place(Number(line.dataset.usd));
      setY(line, percent + "%");
      line.setAttribute("visibility", percent < 0 || percent > 100 ? "hidden" : "visible");
    }
    for (const one of configurations) {
      const title = `${one.name}: ${one.hours.toFixed(1)} h, $${money(one.cost)}, ${one.isTight ? "tight" : "fits"}`;
      setY(one.point, place(one.cost) + "%");
      one.point.classList.toggle("in", one.isWithin);
      one.point.classList.toggle("out", !one.isWithin);
      one.point.toggleAttribute("hidden", !one.isShown);
      one.point.querySelector("title").textContent = title;
    }
    const current = points.find((point) => point.getAttribute("tabindex") === "0");
    if (shown.length && (!current || current.hasAttribute("hidden"))) makeCurrent(shown[0].point);
  };
  const makeCurrent = (point) => points.forEach((one) => one.setAttribute("tabindex", one === point ? "0" : "-1"));
  const tell = (event) => { field("hovered").textContent = event.currentTarget.querySelector("title").textContent; };
  for (const point of points) {
    point.addEventListener("mouseenter", tell);
    point.addEventListener("focus", tell);
    point.addEventListener("click", () => { makeCurrent(point); point.focus(); });
    point.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      const shown = configurations.filter((one) => one.isShown).sort((a, b) => a.hours - b.hours || a.cost - b.cost).map((one) => one.point);
      const here = shown.indexOf(point);
      const next = shown[event.key === "Home" ? 0 : event.key === "End" ? shown.length - 1 : (here + step + shown.length) % shown.length];
      makeCurrent(next);
      next.focus();
    });
  }
  form.hidden = false;
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(update));
  update();
})();
