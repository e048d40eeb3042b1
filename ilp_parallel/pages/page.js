"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- theme: what the system prefers, until the button says otherwise
  const theme = one("#theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let dark = prefersDark.matches;
  const dress = () => {
    theme.setAttribute("aria-pressed", String(dark));
    theme.textContent = dark ? "Light" : "Dark";
  };
  prefersDark.addEventListener("change", (event) => { dark = event.matches; dress(); });
  theme.addEventListener("click", () => {
    dark = !dark;
    document.documentElement.style.colorScheme = dark ? "dark" : "light";
    dress();
  });
  dress();

  // ---- copy buttons
  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      return copied;
    }
  };
  for (const button of all("[data-copy]")) {
    button.addEventListener("click", async () => {
      const copied = await copyText(one("#" + button.dataset.copy).textContent);
      button.textContent = copied ? "Copied" : "Not copied";
      button.focus();
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // ---- tabs
  const tabs = all('[role="tab"]');
  const choose = (tab, focus) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      one("#" + other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => choose(tab, false));
    tab.addEventListener("keydown", (event) => {
      const to = {
        ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: tabs.length - 1,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(tabs[(to + tabs.length) % tabs.length], true);
    });
  });
  if (tabs.length) choose(tabs[0], false);

  // ---- timeline
  const data = JSON.parse(one("#timeline-data").textContent);
  const view = one("#timeline-view");
  if (!view || !data.groups) return;
  const readout = one("#timeline-readout");
  const NS = "http://www.w3.org/2000/svg";
  const { tick, step, chunks, stages, cuts, windows, groups } = data;
  const rowHeight = Math.max(12, Math.min(28, Math.floor(560 / stages)));
  const GUTTER = 66, RIGHT = 10, AXIS = 26, MEMORY = 96, TOP = 6;
  const SHORTEST = Math.max(20, step * 1e-6);  // ticks that a view spans at least

  // operations of all parts of a stage: start, end, code and memory, in flat arrays
  const lanes = groups.map((group) => {
    const lane = { start: [], end: [], code: [], during: [], after: [], part: [] };
    group.parts.forEach((part, number) => {
      let clock = 0;
      part.codes.forEach((code, i) => {
        const chunk = (code >> 1) % chunks;
        clock += part.gaps[i];
        lane.start.push(clock);
        clock += (code & 1 ? group.backward : group.forward)[chunk];
        lane.end.push(clock);
        lane.code.push(code);
        const [during, after] = part.levels[part.held[i]];
        lane.during.push(during);
        lane.after.push(after);
        lane.part.push(number);
      });
    });
    return lane;
  });

  let from = 0, to = step, stage = 0, pointed = null;
  const width = () => Math.max(260, view.clientWidth);
  const x = (t) => GUTTER + ((t - from) / (to - from)) * (width() - GUTTER - RIGHT);
  const timeAt = (pixel) => from + ((pixel - GUTTER) / (width() - GUTTER - RIGHT)) * (to - from);
  const top = (s) => TOP + s * rowHeight;
  const memoryTop = top(stages) + AXIS + 22;

  const say = (ticks, digits) => {
    const s = ticks * tick;
    if (s === 0) return "0 s";
    if (Math.abs(s) >= 1) return `${s.toFixed(digits ?? 4)} s`;
    if (Math.abs(s) >= 1e-3) return `${(1e3 * s).toFixed(digits ?? 3)} ms`;
    return `${(1e6 * s).toFixed(digits ?? 1)} µs`;
  };
  const nameOf = (s, i) => {
    const lane = lanes[s], code = lane.code[i];
    const microbatch = Math.floor((code >> 1) / chunks), chunk = (code >> 1) % chunks;
    const inChunk = chunks > 1 ? `, chunk ${chunk}` : "";
    return `stage ${s}: ${code & 1 ? "backward" : "forward"} of microbatch ${microbatch}${inChunk}, ` +
      `${say(lane.start[i], 6)} to ${say(lane.end[i], 6)} (${say(lane.end[i] - lane.start[i])}), ` +
      `${(lane.after[i] / 1024).toFixed(2)} GiB allocated after it`;
  };

  const node = (tag, attributes, text) => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const firstVisible = (lane) => {  // first operation that ends after the view begins
    let low = 0, high = lane.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] <= from) low = middle + 1; else high = middle;
    }
    return low;
  };
  const box = (left, right, y, height) => {
    const w = Math.max(right - left, 0.4);
    return `M${left.toFixed(1)} ${y}h${w.toFixed(1)}v${height}h${(-w).toFixed(1)}z`;
  };

  const drawRow = (svg, s, labels) => {
    const lane = lanes[s], group = groups[s], y = top(s) + 1, height = rowHeight - 2;
    const path = { f: "", b: "", r: "", t: "" };
    const last = { f: -9, b: -9 };
    let seen = 0, held = null;  // the left end of a run of operations too thin to draw one by one
    for (let i = firstVisible(lane); i < lane.start.length && lane.start[i] < to; i++) {
      const kind = lane.code[i] & 1 ? "b" : "f";
      let left = Math.max(x(lane.start[i]), GUTTER);
      const right = Math.min(x(lane.end[i]), width() - RIGHT);
      seen++;
      if (held && (held.kind !== kind || left - held.right > 0.5)) held = null;
      if (right - last[kind] < 0.5) {
        held = { kind, left: held ? held.left : left, right };
        continue;
      }
      if (held) left = held.left;
      held = null;
      last[kind] = right;
      path[kind] += box(left, right - (right - left > 3 ? 0.6 : 0), y, height);
      let clear = left;
      if (kind === "b" && group.recompute > 0) {
        const until = x(lane.start[i] + group.recompute * (lane.end[i] - lane.start[i]));
        if (until - left >= 0.7) { path.r += box(left, Math.min(until, right), y, height); clear = until; }
      }
      if (right - clear >= 17 && height >= 12) {
        const pair = lane.code[i] >> 1, microbatch = Math.floor(pair / chunks);
        const text = chunks > 1 && right - clear >= 38 ? `${microbatch}.${pair % chunks}` : `${microbatch}`;
        labels.push(node("text", {
          x: ((clear + right) / 2).toFixed(1), y: y + height / 2 + 4, "text-anchor": "middle",
          class: `on-${kind}`,
        }, text));
      }
    }
    const tailFrom = Math.max(x(group.finish), GUTTER);
    const tailTo = Math.min(x(group.finish + group.tail), width() - RIGHT);
    if (group.tail > 0 && tailTo > tailFrom) path.t = box(tailFrom, tailTo, y, height);
    for (const [kind, d] of Object.entries(path)) if (d) svg.append(node("path", { d, class: `fill-${kind}` }));
    return seen;
  };

  const drawSends = (svg) => {
    let d = "";
    for (let s = 0; s < stages; s++) {
      const lane = lanes[s];
      for (let i = firstVisible(lane); i < lane.start.length && lane.start[i] < to; i++) {
        const backward = lane.code[i] & 1, j = ((lane.code[i] >> 1) % chunks) * stages + s;
        const cut = backward ? cuts[j - 1] : cuts[j];
        if (cut === undefined || lane.end[i] > to) continue;
        const other = (backward ? j - 1 : j + 1) % stages;
        const goesDown = other > s;
        const y1 = top(s) + (goesDown ? rowHeight - 1 : 1), y2 = top(other) + (goesDown ? 1 : rowHeight - 1);
        d += `M${x(lane.end[i]).toFixed(1)} ${y1}L${Math.min(x(lane.end[i] + cut), width() - RIGHT).toFixed(1)} ${y2}`;
      }
    }
    if (d) svg.append(node("path", { d, class: "sends" }));
  };

  const drawGaps = (svg) => {
    for (let i = 1; i < windows.length; i++) {
      const left = Math.max(x(windows[i - 1][1]), GUTTER), right = Math.min(x(windows[i][0]), width() - RIGHT);
      if (right <= left) continue;
      let d = "";
      for (let at = left; at < right; at += 9) d += `M${at.toFixed(1)} ${top(stages)}L${Math.min(at + 18, right).toFixed(1)} ${TOP}`;
      svg.append(node("path", { d, class: "hatch", fill: "none", "stroke-opacity": 0.5 }));
      if (right - left > 90) svg.append(node("text", {
        x: (left + right) / 2, y: top(stages) / 2 + 8, "text-anchor": "middle", class: "strong",
      }, "left out"));
    }
  };

  const niceStep = (span, count) => {
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  };
  const drawAxis = (svg) => {
    const span = (to - from) * tick;
    const [unit, scale] = (to * tick >= 1 && span >= 1e-3) ? ["s", 1] : span >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
    const gap = niceStep(span * scale, Math.max(2, Math.floor((width() - GUTTER) / 110)));
    const digits = Math.max(0, -Math.floor(Math.log10(gap) + 1e-9));
    const y = top(stages) + 15;
    svg.append(node("text", { x: 6, y }, `time (${unit})`));
    let grid = "";
    for (let k = Math.ceil((from * tick * scale) / gap - 1e-9); k * gap <= to * tick * scale * (1 + 1e-12); k++) {
      const at = x((k * gap) / scale / tick);
      if (at < GUTTER - 0.5) continue;
      grid += `M${at.toFixed(1)} ${TOP}V${top(stages) + 3}M${at.toFixed(1)} ${memoryTop}v${MEMORY}`;
      const anchor = at > width() - 44 ? "end" : at < GUTTER + 20 ? "start" : "middle";
      svg.append(node("text", { x: at.toFixed(1), y, "text-anchor": anchor }, (k * gap).toFixed(digits)));
    }
    svg.append(node("path", { d: grid, class: "axis" }));
  };

  const drawMemory = (svg) => {
    const lane = lanes[stage], group = groups[stage], base = memoryTop + MEMORY;
    const mib = 1 / 1048576, most = 1.08 * Math.max(group.capacity, group.peak) * mib;
    const y = (held) => (base - (held / most) * MEMORY).toFixed(1);
    const edge = (t) => Math.max(GUTTER, Math.min(x(t), width() - RIGHT)).toFixed(1);
    const start = firstVisible(lane);
    let level = start > 0 && lane.part[start] === lane.part[start - 1] ? lane.after[start - 1] : group.standing * mib;
    let d = `M${edge(from)} ${base}V${y(level)}`, column = -1, low = 0, high = 0, part = lane.part[start];
    const flush = () => { if (column >= 0) d += `H${column}V${y(high)}V${y(low)}V${y(level)}`; };
    for (let i = start; i < lane.start.length && lane.start[i] < to; i++) {
      if (lane.part[i] !== part) {  // what lies between two parts is left out
        flush();
        d += `H${edge(windows[part][1])}V${base}H${edge(windows[lane.part[i]][0])}`;
        part = lane.part[i];
        column = -1;
        level = lane.after[i];
      }
      for (const [time, held] of [[lane.start[i], lane.during[i]], [lane.end[i], lane.after[i]]]) {
        if (time > to) break;
        const at = Math.floor(edge(time) * 2) / 2;
        if (at !== column) { flush(); column = at; low = high = held; }
        low = Math.min(low, held);
        high = Math.max(high, held);
        level = held;
      }
    }
    flush();
    d += `H${edge(Math.min(to, step))}V${base}z`;
    svg.append(node("path", { d, class: "held" }));
    const limit = y(group.capacity * mib);
    svg.append(node("path", { d: `M${GUTTER} ${limit}H${width() - RIGHT}`, class: "most" }));
    svg.append(node("text", { x: 6, y: memoryTop - 7, class: "strong" },
      `memory of stage ${stage}: peak ${(group.peak * mib / 1024).toFixed(1)} of ` +
      `${(group.capacity * mib / 1024).toFixed(1)} GiB usable`));
    svg.append(node("text", { x: GUTTER - 5, y: base, "text-anchor": "end" }, "0 GiB"));
    svg.append(node("text", { x: GUTTER - 5, y: +limit + 4, "text-anchor": "end" },
      `${(group.capacity * mib / 1024).toFixed(0)} GiB`));
  };

  const draw = () => {
    const height = memoryTop + MEMORY + 8;
    const svg = node("svg", { width: width(), height, viewBox: `0 0 ${width()} ${height}`, "aria-hidden": "true" });
    const labels = [];
    let seen = 0;
    for (let s = 0; s < stages; s++) {
      svg.append(node("rect", { x: GUTTER, y: top(s) + 1, width: width() - GUTTER - RIGHT, height: rowHeight - 2, class: "idle" }));
    }
    drawAxis(svg);
    for (let s = 0; s < stages; s++) {
      seen += drawRow(svg, s, labels);
      if (rowHeight >= 14 || s % 4 === 0) {
        svg.append(node("text", { x: GUTTER - 6, y: top(s) + rowHeight / 2 + 4, "text-anchor": "end", class: s === stage ? "strong" : "" }, `stage ${s}`));
      }
    }
    drawGaps(svg);
    if (seen < 900) drawSends(svg);
    svg.append(...labels.slice(0, 1200));
    svg.append(node("rect", { x: GUTTER, y: top(stage) + 0.5, width: width() - GUTTER - RIGHT, height: rowHeight - 1, class: "chosen" }));
    if (pointed) {
      const lane = lanes[pointed.s], left = x(lane.start[pointed.i]);
      svg.append(node("rect", { x: left, y: top(pointed.s) + 1, width: Math.max(1, x(lane.end[pointed.i]) - left), height: rowHeight - 2, class: "pointed" }));
    }
    drawMemory(svg);
    view.replaceChildren(svg);
    view.dataset.from = from;
    view.dataset.to = to;
    view.dataset.stage = stage;
  };
  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };

  const show = (low, high) => {
    const span = Math.max(SHORTEST, Math.min(high - low, step));
    from = Math.max(0, Math.min(low, step - span));
    to = from + span;
    tell();
    redraw();
  };
  const zoom = (factor, around = (from + to) / 2) => show(around - (around - from) * factor, around + (to - around) * factor);
  const move = (share) => show(from + share * (to - from), to + share * (to - from));
  const closeUp = () => Math.min(step, 40 * Math.max(...groups[0].forward, ...groups[0].backward));
  const acts = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.3), right: () => move(0.3),
    all: () => show(0, step), start: () => show(0, closeUp()), end: () => show(step - closeUp(), step),
    middle: () => { const c = windows.length > 1 ? (windows[1][0] + windows[1][1]) / 2 : data.makespan / 2; show(c - closeUp() / 2, c + closeUp() / 2); },
  };
  for (const button of all("[data-act]")) button.addEventListener("click", () => acts[button.dataset.act]());

  const tell = () => { readout.textContent = pointed ? nameOf(pointed.s, pointed.i) : `stage ${stage} chosen, ${say(from, 3)} to ${say(to, 3)} shown`; };
  const stepTo = (by) => {
    const lane = lanes[stage];
    let i = pointed && pointed.s === stage ? pointed.i + by : firstVisible(lane);
    i = Math.max(0, Math.min(i, lane.start.length - 1));
    pointed = { s: stage, i };
    if (lane.start[i] < from || lane.end[i] > to) {
      const centre = (lane.start[i] + lane.end[i]) / 2, half = (to - from) / 2;
      show(centre - half, centre + half);
    }
    tell();
    redraw();
  };
  const pick = (s) => { stage = Math.max(0, Math.min(s, stages - 1)); pointed = null; tell(); redraw(); };
  const keys = {
    "+": acts.in, "=": acts.in, "-": acts.out, _: acts.out, ArrowLeft: acts.left, ArrowRight: acts.right,
    ArrowUp: () => pick(stage - 1), ArrowDown: () => pick(stage + 1),
    Home: () => show(0, to - from), End: () => show(step - (to - from), step), 0: acts.all,
    n: () => stepTo(1), p: () => stepTo(-1),
  };
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });

  const find = (event) => {
    const frame = view.getBoundingClientRect(), t = timeAt(event.clientX - frame.left);
    const s = Math.floor((event.clientY - frame.top - TOP) / rowHeight);
    if (s < 0 || s >= stages) return null;
    const lane = lanes[s];
    let low = 0, high = lane.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.end[middle] <= t) low = middle + 1; else high = middle;
    }
    return { s, i: low < lane.start.length && lane.start[low] <= t ? low : -1 };
  };
  const fingers = new Map();
  let moved = 0;
  view.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    view.setPointerCapture(event.pointerId);
    moved = 0;
  });
  view.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) {
      const found = find(event);
      if (found && found.i >= 0) readout.textContent = nameOf(found.s, found.i);
      return;
    }
    const before = [...fingers.values()], last = fingers.get(event.pointerId);
    fingers.set(event.pointerId, event.clientX);
    moved += Math.abs(event.clientX - last);
    if (fingers.size === 1) {
      move((last - event.clientX) / (width() - GUTTER - RIGHT));
    } else if (fingers.size === 2) {
      const after = [...fingers.values()];
      const ratio = Math.abs(before[0] - before[1]) / Math.max(8, Math.abs(after[0] - after[1]));
      zoom(ratio, timeAt((after[0] + after[1]) / 2 - view.getBoundingClientRect().left));
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    view.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      const found = name === "pointerup" && moved < 4 ? find(event) : null;
      if (!found) return;
      pick(found.s);
      if (found.i >= 0) { pointed = found; tell(); redraw(); }
    });
  }
  view.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.clientX - view.getBoundingClientRect().left)));
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoom(1.0015 ** (event.deltaY || event.deltaX), timeAt(event.clientX - view.getBoundingClientRect().left));
  }, { passive: false });
  new ResizeObserver(redraw).observe(view);
  addEventListener("beforeprint", draw);
  tell();
  draw();
})();
