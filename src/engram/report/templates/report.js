"use strict";
(() => {
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const root = document.documentElement;
  const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const numberOf = new Map(page.methods.map((name, i) => [name, i]));
  const touch = matchMedia("(pointer: coarse)").matches;
  const state = { off: new Set(), view: page.view };

  // Theme: the page and every figure.
  const dark = () => root.dataset.theme === "dark";
  const storage = {
    get() { try { return localStorage.getItem("engram-theme"); } catch { return null; } },
    set(value) { try { localStorage.setItem("engram-theme", value); } catch { /* file pages may refuse */ } },
  };
  function themed(layout) {
    const css = getComputedStyle(root);
    const color = (name) => css.getPropertyValue(name).trim();
    const look = {
      "font.color": color("--ink"), "font.family": getComputedStyle(document.body).fontFamily, "font.size": 12,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      "hoverlabel.bgcolor": color("--card"), "hoverlabel.bordercolor": color("--line"), "hoverlabel.font.color": color("--ink"),
      "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": color("--soft"), "modebar.activecolor": color("--accent"),
    };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      look[`${axis}.gridcolor`] = color("--line");
      look[`${axis}.linecolor`] = color("--line");
      look[`${axis}.tickfont.color`] = color("--soft");
      look[`${axis}.title.font.color`] = color("--soft");
    }
    return look;
  }
  // Cells of heat maps near the paper where they are empty, and numbers on them readable.
  function heated(trace) {
    const heat = page.heat[dark() ? "dark" : "light"];
    if (trace.type === "heatmap") return { colorscale: heat.colors };
    if (trace.mode === "text") return { "textfont.color": trace.text.map((text) => heat.text[Number(text) < heat.turn ? 0 : 1]) };
    return null;
  }
  async function reheat(plot) {
    for (const [i, trace] of plot.data.entries()) {
      const look = heated(trace);
      if (look) await Plotly.restyle(plot, Object.fromEntries(Object.entries(look).map(([key, value]) => [key, [value]])), [i]);
    }
  }
  function setTheme(name) {
    root.dataset.theme = name;
    const button = document.getElementById("theme");
    button.textContent = name === "dark" ? "Light mode" : "Dark mode";
    button.setAttribute("aria-pressed", String(name === "dark"));
    return Promise.all(every(".js-plotly-plot").map(async (plot) => {
      await Plotly.relayout(plot, themed(plot.layout));
      await reheat(plot);
    }));
  }

  // Figures: which traces show is a function of the switches alone.
  const shown = (method, head) => !state.off.has(method) && (!head || head === state.view);
  function visibility(traces) {
    return traces.map((trace) => {
      const { label, head } = trace.meta;
      return label === null ? !head || head === state.view : shown(numberOf.get(label), head);
    });
  }
  function markEmpty(plot, flags) {
    const own = plot.data.filter((trace) => trace.meta.label !== null);
    const empty = own.length > 0 && !plot.data.some((trace, i) => flags[i] && trace.meta.label !== null);
    const panel = plot.closest(".panel");
    const changed = panel.classList.contains("is-empty") !== empty;
    panel.classList.toggle("is-empty", empty);
    panel.querySelector(".nothing").hidden = !empty;
    return changed && !empty;
  }
  function set(layout, path, value) {
    const keys = path.split(".");
    const last = keys.pop();
    keys.reduce((at, key) => (at[key] ??= {}), layout)[last] = value;
  }
  async function draw(plot) {
    const { data, layout } = page.figures[plot.dataset.figure];
    for (const [path, value] of Object.entries(themed(layout))) set(layout, path, value);
    if (touch) layout.dragmode = false; // a finger on a figure scrolls the page
    const flags = visibility(data);
    data.forEach((trace, i) => {
      trace.visible = flags[i];
      for (const [path, value] of Object.entries(heated(trace) ?? {})) set(trace, path, value);
    });
    await Plotly.newPlot(plot, data, layout, {
      responsive: true, displaylogo: false, displayModeBar: !touch,
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      toImageButtonOptions: { format: "svg", filename: plot.dataset.figure },
    });
    markEmpty(plot, flags);
  }
  async function drawAll() {
    for (const plot of every(".plot")) {
      await draw(plot);
      await new Promise((next) => setTimeout(next)); // let the page breathe between figures
    }
    root.dataset.ready = "true";
  }

  // Plotly refuses to measure a figure that is not displayed.
  const fit = (plot) => (plot.offsetParent ? Plotly.Plots.resize(plot) : null);

  // Switches.
  function apply() {
    for (const element of every("[data-method], tr[data-head]")) {
      const method = element.dataset.method;
      element.hidden = !shown(method === undefined ? null : Number(method), element.dataset.head);
    }
    for (const entry of every("[data-legend]")) entry.classList.toggle("off", state.off.has(Number(entry.dataset.legend)));
    return Promise.all(every(".js-plotly-plot").map(async (plot) => {
      if (plot.closest(".panel").hidden) return;
      const flags = visibility(plot.data);
      const back = markEmpty(plot, flags);
      if (flags.some((flag, i) => flag !== (plot.data[i].visible ?? true))) await Plotly.restyle(plot, { visible: flags });
      if (back || plot.offsetWidth !== plot._fullLayout.width) await fit(plot);
    }));
  }
  function switchMethods() {
    state.off = new Set(every("#methods input[type=checkbox]:not(:checked)").map((box) => Number(box.value)));
    return apply();
  }
  function switchAll(on) {
    for (const box of every("#methods input[type=checkbox]")) {
      if (!box.closest("label").hidden) box.checked = on;
    }
    return switchMethods();
  }

  // Tables.
  function keyOf(row, column) {
    const cell = row.cells[column];
    return cell.dataset.sort === undefined ? cell.textContent.trim() : Number(cell.dataset.sort);
  }
  function compare(a, b, sign) {
    const text = typeof a === "string" || typeof b === "string";
    if (text) return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b); // what is missing comes last
    return sign * (a - b);
  }
  function sortBy(head) {
    const table = head.closest("table");
    const column = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of every("th", table)) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, column), row]);
    rows.sort((a, b) => compare(a[0], b[0], up ? 1 : -1));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }
  function showForgetting(select) {
    document.getElementById("definition-text").textContent = select.selectedOptions[0].dataset.text;
    every("#table-summary tbody tr").forEach((row) => {
      const cell = row.querySelector("[data-forgetting]");
      const [mean, spread, sort, best] = page.forgetting[row.dataset.row][select.value];
      const small = document.createElement("small");
      small.textContent = spread;
      cell.replaceChildren(mean, ...(spread ? [small] : []));
      cell.dataset.sort = sort ?? "NaN";
      cell.classList.toggle("best", best);
    });
    const head = document.querySelector("#table-summary th[aria-sort]:not([aria-sort=none])");
    if (head && head.cellIndex === document.querySelector("[data-forgetting]").cellIndex) {
      head.setAttribute("aria-sort", head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending");
      sortBy(head); // sorted by forgetting: sort again by the new numbers
    }
  }
  function download(button) {
    const { table, form } = button.dataset;
    const ending = { csv: "csv", latex: "tex", markdown: "md" }[form];
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([page.tables[table][form] + "\n"], { type: "text/plain;charset=utf-8" }));
    link.download = `${table}.${ending}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // A table wider than its box says how many columns are out of sight, and where.
  function showReach(box) {
    const frame = box.parentElement;
    const name = box.querySelector("th.row-name");
    const held = name && box.scrollLeft > 0 ? name.offsetWidth : 0;
    const left = box.getBoundingClientRect().left;
    const spans = every("th:not(.row-name)", box).map((head) => head.getBoundingClientRect());
    const before = spans.filter((span) => span.left - left < held - 4).length;
    const after = spans.filter((span) => span.right - left > box.clientWidth + 4).length;
    const wide = box.scrollWidth > box.clientWidth + 1;
    frame.style.setProperty("--held", `${held}px`);
    frame.classList.toggle("goes-left", wide && before > 0);
    frame.classList.toggle("goes-right", wide && after > 0);
    const columns = (count) => `${count} more ${count === 1 ? "column" : "columns"}`;
    const words = [before ? `← ${columns(before)}` : "", after ? `${columns(after)} →` : ""].filter(Boolean);
    const sign = frame.querySelector(".hidden-columns");
    sign.hidden = !wide;
    sign.textContent = words.join(" · ");
  }
  const sized = new ResizeObserver((entries) => entries.forEach((entry) => showReach(entry.target.closest(".table-box"))));

  // Wiring.
  for (const box of every(".table-box")) {
    box.addEventListener("scroll", () => showReach(box), { passive: true });
    sized.observe(box);
    sized.observe(box.querySelector("table"));
  }
  every("#table-summary tbody tr").forEach((row, i) => { row.dataset.row = i; });
  every("#methods input[type=checkbox]").forEach((box) => box.addEventListener("change", switchMethods));
  every("input[name=view]").forEach((box) => box.addEventListener("change", () => { state.view = box.value; apply(); }));
  every("th button").forEach((button) => button.addEventListener("click", () => sortBy(button.parentElement)));
  every("[data-form]").forEach((button) => button.addEventListener("click", () => download(button)));
  document.getElementById("all-on")?.addEventListener("click", () => switchAll(true));
  document.getElementById("all-off")?.addEventListener("click", () => switchAll(false));
  document.getElementById("definition")?.addEventListener("change", (event) => showForgetting(event.target));
  document.getElementById("filter")?.addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const label of every(".method-list label")) label.hidden = !label.textContent.toLowerCase().includes(wanted);
  });
  document.getElementById("theme").addEventListener("click", () => {
    const name = dark() ? "light" : "dark";
    storage.set(name);
    setTheme(name);
  });
  document.getElementById("print").addEventListener("click", () => window.print());
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => { if (!storage.get()) setTheme(system.matches ? "dark" : "light"); });
  // A browser takes the page as it stands when this event returns: lay it out for paper here, and
  // give figures their width outright, since measuring them comes too late.
  let before = "light";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.classList.add("printing");
    setTheme("light");
    for (const plot of every(".js-plotly-plot")) {
      if (plot.offsetParent) Plotly.relayout(plot, { width: plot.parentElement.clientWidth });
    }
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    setTheme(before);
    for (const plot of every(".js-plotly-plot")) Plotly.relayout(plot, { width: null, autosize: true }).then(() => fit(plot));
  });
  const controls = document.getElementById("controls");
  const narrow = matchMedia("(max-width: 60rem)");
  const fold = () => { controls.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  every("nav a").forEach((link) => link.addEventListener("click", () => { if (narrow.matches) controls.open = false; }));

  fold();
  setTheme(storage.get() ?? (system.matches ? "dark" : "light"));
  apply();
  window.engramReport = { ready: drawAll(), state };
})();
