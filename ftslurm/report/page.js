"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { report, words, lanes, quorum, rate } = data;
  const main = document.getElementById("report"), tip = document.getElementById("tip");
  const span = Math.max(report.end - report.begin, 1e-3), WIDE = 10000;
  const STATES = { training: "trains", starting: "first start", recovering: "recovers", stalled: "stalls",
    undone: "trained, later undone", given_up: "given up", queued: "waits for nodes", finished: "finished" };
  const KNOWN = new Set(["training", "stalled", "undone", "given_up", "queued", "finished"]);

  // --- words -------------------------------------------------------------------------------------------------------
  const make = (name, kind, text, ...inner) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    if (text !== undefined && text !== null) node.textContent = text;
    node.append(...inner);
    return node;
  };
  const seconds = (s) => {
    if (s === null || s === undefined) return "–";
    if (s < 0.01) return s > 0 ? "<0.01 s" : "0 s";
    if (s < 9.95) return `${+s.toPrecision(2)} s`;
    const whole = Math.round(s);
    if (whole < 120) return `${whole} s`;
    if (whole < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  };
  const percent = (r) => (r === null ? "–" : `${(100 * r).toFixed(1)} %`);
  const amount = (n) => {
    if (n < 0.01) return n > 0 ? "<0.01" : "0";
    return n >= 100 ? Math.round(n).toLocaleString("en") : String(+n.toPrecision(3));
  };
  const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  const moment = (t) => new Date(1000 * t).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
  const cause = (name) => words.causes[name] || name.replaceAll("_", " ");
  const phase = (name) => words.phases[name] || name.replaceAll("_", " ");
  const stateOf = (name, why) => (KNOWN.has(name) ? name : why === "first_start" ? "starting" : "recovering");
  const section = (title, kind) => {
    const node = make("section", kind, null, make("h2", null, title));
    main.append(node);
    return node;
  };

  // --- head --------------------------------------------------------------------------------------------------------
  const head = () => {
    const box = make("header");
    box.append(make("div", "head", null, make("h1", null, report.run_id), make("span", `badge ${report.outcome}`, report.outcome)));
    if (!report.groups.length) {
      const words = report.outcome === "running" ? "has not started yet" : "never started";
      main.append(box);
      box.append(make("p", null, report.reason ? `${words}: ${report.reason}` : words));
      return;
    }
    if (report.reason) box.append(make("p", null, report.reason));
    const starts = report.starts > 1 ? ` · ${plural(report.starts, "job start")}` : "";
    box.append(make("p", "soft", `${moment(report.begin)} to ${moment(report.end)} · ${seconds(span)} · ${plural(report.groups.length, "group")}${starts}`));
    const cards = make("div", "cards"), r = report.ratios, s = report.steps;
    const card = (value, what) => cards.append(make("div", "card", null, make("b", value.length > 12 ? "long" : null, value), make("span", null, what)));
    card(percent(r.goodput), "goodput");
    card(s.reached.toLocaleString("en") + (s.total ? ` / ${s.total.toLocaleString("en")}` : ""), "committed steps" + (s.undone ? `, ${s.undone} undone` : ""));
    card(percent(r.step_efficiency), "step efficiency");
    if (r.participation !== null) card(`${amount(r.participation)} / ${report.groups.length}`, "groups in the quorum, mean");
    const failures = report.failures.filter((f) => !f.moved).length;
    card(failures.toLocaleString("en"), `${failures === 1 ? "failure" : "failures"}, MTTF ${seconds(r.mttf_s)}`);
    card(seconds(r.recovery_median_s), `median recovery, longest ${seconds(r.recovery_worst_s)}`);
    card(amount(report.hours.lost), `${report.unit} lost of ${amount(report.hours.total - report.hours.finished)}`);
    main.append(box, cards);
  };

  // --- the total -----------------------------------------------------------------------------------------------------
  const total = () => {
    const box = section("Where the time of the groups went"), sums = {};
    for (const row of lanes.rows) {
      for (let i = 0; i < row.spans.length; i += 6) {
        const state = stateOf(lanes.phases[row.spans[i + 2]], lanes.causes[row.spans[i + 3]]);
        sums[state] = (sums[state] || 0) + row.spans[i + 1] - row.spans[i];
      }
    }
    const all = Object.values(sums).reduce((a, b) => a + b, 0) || 1;
    const bar = make("div", "stack"), list = make("ul", "legend");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", Object.keys(STATES).filter((k) => sums[k]).map((k) => `${STATES[k]} ${percent(sums[k] / all)}`).join(", "));
    for (const state of Object.keys(STATES)) {
      if (!sums[state]) continue;
      const part = make("i", state);
      part.style.width = `${(100 * sums[state]) / all}%`;
      bar.append(part);
      list.append(make("li", null, null, make("i", state), `${STATES[state]} ${percent(sums[state] / all)} `, make("span", "soft", seconds(sums[state]))));
    }
    box.append(bar, list);
  };

  // --- charts over time ------------------------------------------------------------------------------------------------
  const svg = (height) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    node.setAttribute("viewBox", `0 0 ${WIDE} ${height}`);
    node.setAttribute("preserveAspectRatio", "none");
    node.setAttribute("aria-hidden", "true");
    node.style.height = `${height}px`;
    return node;
  };
  const draw = (into, kind, d) => {
    if (!d) return;
    const node = document.createElementNS("http://www.w3.org/2000/svg", "path");
    node.setAttribute("class", kind);
    node.setAttribute("d", d);
    into.append(node);
  };
  const at = (t) => Math.min(WIDE, Math.max(0, (t / span) * WIDE)).toFixed(1);
  const cursors = [];
  const axes = [];
  const chart = (box, title, height, label) => {
    const gutter = make("div", "gutter"), plot = make("div", "plot"), picture = svg(height);
    const cursor = make("div", "cursor");
    cursor.hidden = true;
    cursors.push(cursor);
    plot.append(picture, cursor);
    plot.tabIndex = 0;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", label);
    box.append(make("div", "chart", null, make("h3", null, title), gutter, plot));
    return { gutter, plot, picture };
  };
  const axis = (box) => {
    const line = make("div", "axis");
    box.lastChild.append(line);
    axes.push(line);
  };
  const TICKS = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];
  const short = (t) => {
    if (span < 5) return `${+t.toFixed(1)} s`;
    if (span < 7200) return `${Math.floor(t / 60)}:${String(Math.floor(t % 60)).padStart(2, "0")}`;
    if (span < 259200) return `${Math.floor(t / 3600)}:${String(Math.floor((t % 3600) / 60)).padStart(2, "0")} h`;
    return `${+(t / 86400).toFixed(1)} d`;
  };
  const ticks = () => {
    for (const line of axes) {
      line.replaceChildren();
      const most = Math.max(2, line.clientWidth / 90), step = TICKS.find((s) => span / s <= most) || span;
      for (let t = 0; t <= span; t += step) {
        const mark = make("span", t > 0.95 * span ? "last" : null, short(t));
        mark.style.left = `${(100 * t) / span}%`;
        line.append(mark);
      }
    }
  };
  const show = (lines, x, y) => {
    tip.replaceChildren(...lines.filter(Boolean).map((line, n) => make(n ? "div" : "b", null, line)));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 6))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 14) : y + 18}px`;
  };
  const hide = () => {
    tip.hidden = true;
    for (const cursor of cursors) cursor.hidden = true;
    for (const ring of document.querySelectorAll(".picked")) ring.remove();
  };
  const point = (t) => {
    for (const cursor of cursors) {
      cursor.hidden = false;
      cursor.style.left = `${(100 * t) / span}%`;
    }
  };
  const hover = (plot, told) => {
    const tell = (event) => {
      const box = plot.getBoundingClientRect();
      const t = Math.min(span, Math.max(0, ((event.clientX - box.left) / box.width) * span));
      const lines = told(t, event.clientY - box.top, (6 / box.width) * span);
      hide();
      point(t);
      if (lines) show(lines, event.clientX, event.clientY);
    };
    plot.addEventListener("pointermove", tell);
    plot.addEventListener("pointerdown", tell);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
  };
  const walk = (plot, count, told) => {
    let now = -1;
    plot.addEventListener("keydown", (event) => {
      const to = { ArrowRight: now + 1, ArrowLeft: now < 0 ? count - 1 : now - 1, Home: 0, End: count - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (to === undefined || !count) return;
      event.preventDefault();
      now = Math.min(count - 1, Math.max(0, to));
      const { t, y, lines } = told(now), box = plot.getBoundingClientRect();
      hide();
      point(t);
      const ring = make("div", "picked");
      ring.style.left = `${(100 * t) / span}%`;
      ring.style.top = `${y}px`;
      plot.append(ring);
      ring.scrollIntoView({ block: "nearest" });
      const moved = plot.getBoundingClientRect();
      show(lines, moved.left + (t / span) * box.width, moved.top + y);
    });
    plot.addEventListener("blur", hide);
  };
  const before = (points, t) => {
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= t) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const scale = (gutter, most, height, unit) => {
    const top = make("span", "top", unit(most)), bottom = make("span", "bottom", unit(0));
    top.style.top = "0px";
    bottom.style.top = `${height}px`;
    gutter.append(top, bottom);
  };
  const series = (box, title, points, steps, unit, told) => {
    const HIGH = 84, most = points.reduce((m, p) => Math.max(m, p[1]), 0) || 1;
    const { gutter, plot, picture } = chart(box, title, HIGH, `${title}: from 0 to ${unit(most)}. Arrow keys step through it.`);
    const y = (v) => (HIGH - 2 - (v / most) * (HIGH - 6)).toFixed(1);
    let line = "";
    points.forEach((p, n) => {
      line += n ? (steps ? `H${at(p[0])}V${y(p[1])}` : `L${at(p[0])} ${y(p[1])}`) : `M${at(p[0])} ${y(p[1])}`;
    });
    if (points.length) {
      if (steps) line += `H${WIDE}`;
      const end = steps ? WIDE : at(points[points.length - 1][0]);
      draw(picture, "area", `${line}L${end} ${HIGH}L${at(points[0][0])} ${HIGH}Z`);
      draw(picture, "line", line);
    }
    scale(gutter, most, HIGH, unit);
    const tell = (n) => [told(points[n][1]), `${seconds(points[n][0])} after the start`, moment(report.begin + points[n][0])];
    hover(plot, (t) => {
      const n = before(points, t);
      return n < 0 ? null : [told(points[n][1]), `${seconds(t)} after the start`, moment(report.begin + t)];
    });
    walk(plot, points.length, (n) => ({ t: points[n][0], y: +y(points[n][1]), lines: tell(n) }));
  };

  // --- the groups --------------------------------------------------------------------------------------------------------
  const toldFailure = (f) => [
    `${f.group === null ? f.unit : `group ${f.group}, attempt ${f.attempt}`}: ${f.detail}`,
    `${seconds(f.time - report.begin)} after the start, ${moment(f.time)}`,
    f.step === null ? null : `at step ${f.step}`,
    f.drill ? `a drill: ${f.drill}` : null,
    f.back === null ? "not back" : `back after ${seconds(f.recovery_s)}`,
    phasesOf(f),
  ];
  const phasesOf = (f) => f.phases && Object.entries(f.phases).filter(([, s]) => s >= 0.01).map(([name, s]) => `${name} ${seconds(s)}`).join(", ");
  const groups = (box) => {
    const count = lanes.rows.length, row = count <= 12 ? 24 : count <= 48 ? 15 : count <= 128 ? 9 : 6;
    const gap = row > 8 ? 3 : 1, height = count * row;
    const { gutter, plot, picture } = chart(box, "groups", height,
      `One bar for each of ${count} groups over time; ${report.failures.length} failures and moves. The arrow keys step through them.`);
    const paths = {};
    lanes.rows.forEach((lane, n) => {
      const y = n * row, h = row - gap, v = lane.spans;
      for (let i = 0; i < v.length; i += 6) {
        const state = stateOf(lanes.phases[v[i + 2]], lanes.causes[v[i + 3]]);
        const x = at(v[i]), wide = Math.max(at(v[i + 1]) - x, state === "training" ? 0.1 : 6).toFixed(1);
        (paths[state] ||= []).push(`M${x} ${y}h${wide}v${h}h-${wide}z`);
      }
    });
    for (const state of Object.keys(STATES)) if (paths[state]) draw(picture, state, paths[state].join(""));
    const ticksOf = (keep) => report.failures.filter(keep).map((f) => `M${at(f.time - report.begin)} ${f.group * row}v${row - gap}`).join("");
    draw(picture, "moved", ticksOf((f) => f.group !== null && f.moved));
    draw(picture, "mark", ticksOf((f) => f.group !== null && !f.moved));
    draw(picture, "whole", report.failures.filter((f) => f.group === null).map((f) => `M${at(f.time - report.begin)} 0V${height}`).join(""));
    const every = [1, 2, 4, 8, 16, 32, 64, 128].find((k) => k * row >= 15) || 256;
    lanes.rows.forEach((lane, n) => {
      if (n % every) return;
      const label = make("span", null, lane.role && innerWidth > 700 ? `${lane.group} ${lane.role}` : String(lane.group));
      label.style.top = `${n * row + (row - gap) / 2}px`;
      gutter.append(label);
    });
    const legend = make("ul", "legend");
    for (const state of Object.keys(STATES)) if (paths[state]) legend.append(make("li", null, null, make("i", state), STATES[state]));
    if (report.failures.some((f) => !f.moved)) legend.append(make("li", null, null, make("i", "tick mark"), "failure"));
    if (report.failures.some((f) => f.moved)) legend.append(make("li", null, null, make("i", "tick moved"), "moved, no failure"));
    hover(plot, (t, y, near) => {
      const n = Math.min(count - 1, Math.max(0, Math.floor(y / row))), lane = lanes.rows[n];
      if (!lane) return null;
      let best = null;
      for (const f of report.failures) {
        const far = Math.abs(f.time - report.begin - t);
        if (f.group === lane.group && far < near && (!best || far < Math.abs(best.time - report.begin - t))) best = f;
      }
      if (best) return toldFailure(best);
      for (let i = 0; i < lane.spans.length; i += 6) {
        const [from, to, p, c, node, attempt] = lane.spans.slice(i, i + 6);
        if (t < from || t > to) continue;
        const state = stateOf(lanes.phases[p], lanes.causes[c]), lost = !["training", "queued", "finished"].includes(state);
        return [`group ${lane.group}${attempt < 0 ? "" : `, attempt ${attempt}`}: ${STATES[state]}`, lost ? phase(lanes.phases[p]) : null,
          lost && lanes.causes[c] ? `because: ${cause(lanes.causes[c])}` : null, lanes.nodes[node] ? `on ${lanes.nodes[node]}` : null,
          `${seconds(to - from)}, from ${moment(report.begin + from)}`];
      }
      return null;
    });
    walk(plot, report.failures.length, (n) => {
      const f = report.failures[n];
      return { t: f.time - report.begin, y: f.group === null ? 0 : f.group * row + (row - gap) / 2, lines: toldFailure(f) };
    });
    axis(box);
    box.append(legend);
  };
  const overTime = () => {
    const box = section("Over time", "long");
    if (quorum.length) series(box, "groups in the quorum", quorum, true, (v) => String(Math.round(v)), (v) => `${plural(v, "group")} in the quorum`);
    if (rate.length) series(box, "steps per second", rate, false, (v) => String(+v.toPrecision(2)), (v) => `${+v.toPrecision(3)} steps per second`);
    groups(box);
  };

  // --- tables ----------------------------------------------------------------------------------------------------------
  const table = (into, columns, rows, kind, first) => {
    const body = make("tbody"), heads = make("tr");
    for (const column of columns) heads.append(make("th", column.kind, column.name));
    const whole = make("table", kind, null, make("thead", null, null, heads), body);
    const add = (some) => body.append(...some.map((row) => {
      const line = make("tr");
      for (const column of columns) {
        const cell = make("td", column.kind), value = column.value(row);
        if (column.label) cell.dataset.name = column.label;
        cell.append(...(Array.isArray(value) ? value : [value]));
        line.append(cell);
      }
      return line;
    }));
    add(rows.slice(0, first));
    into.append(make("div", "scroll", null, whole));
    if (rows.length > first) {
      const more = make("button", null, `show all ${rows.length.toLocaleString("en")}`);
      more.addEventListener("click", () => { add(rows.slice(first)); more.remove(); });
      into.append(more);
    }
  };
  const lostBy = (into, title, name, accounts, counted) => {
    const box = make("div", null, null, make("h3", null, title)), most = Math.max(...accounts.map((one) => one.seconds), 1e-9);
    const bar = (one) => {
      const node = make("span", "bar");
      node.style.width = `${(100 * one.seconds) / most}%`;
      return node;
    };
    table(box, [
      { name: "", value: (one) => [name(one.name), bar(one)] },
      { name: "time", kind: "n", value: (one) => seconds(one.seconds) },
      { name: report.unit, kind: "n", value: (one) => amount(one.hours) },
      { name: "share", kind: "n", value: (one) => percent(report.time.lost_s ? one.seconds / report.time.lost_s : null) },
      ...(counted ? [{ name: "failures", kind: "n", value: (one) => String(one.failures) }] : []),
    ], accounts, "lost", 12);
    into.append(box);
  };
  const lost = () => {
    if (!report.time.lost_s) return;
    const pair = make("div", "pair"), worst = (accounts) => [...accounts].sort((a, b) => b.seconds - a.seconds);
    section(`Lost time: ${seconds(report.time.lost_s)} of groups`, "long").append(pair);
    lostBy(pair, "by cause", cause, report.lost.by_cause, true);
    lostBy(pair, "by phase", phase, report.lost.by_phase, false);
    lostBy(pair, "by node on which the failure began", (name) => name || "no node", report.lost.by_node, true);
    lostBy(pair, "by group", (name) => `group ${name}`, worst(report.lost.by_group), true);
  };
  const failures = () => {
    if (!report.failures.length) return;
    const box = section("Failures and moves", "long");
    table(box, [
      { name: "when", kind: "once", value: (f) => [moment(f.time)] },
      { name: "who", kind: "once", value: (f) => (f.group === null ? f.unit : `group ${f.group}, attempt ${f.attempt}`) },
      { name: "what", kind: "full", value: (f) => [f.detail, ...(f.drill ? [" ", make("span", "chip", `drill: ${f.drill}`)] : []),
        ...(f.moved ? [" ", make("span", "chip", "no failure")] : []), ...(f.log ? [make("div", "log", f.log)] : [])] },
      { name: "node", kind: "once", label: "node", value: (f) => f.node || "–" },
      { name: "back after", kind: "n", label: "back after", value: (f) => (f.back === null ? "not back" : seconds(f.recovery_s)) },
      { name: "phases of the recovery", kind: "phases full", value: (f) => phasesOf(f) || "–" },
    ], report.failures, "wide", 50);
  };
  const nodes = () => {
    if (!report.nodes.length) return;
    table(section("Nodes", "long"), [
      { name: "node", value: (n) => n.node },
      { name: "failures", kind: "n", label: "failures", value: (n) => String(n.failures) },
      { name: "lost by them", kind: "n", label: "lost by them", value: (n) => seconds(n.lost_s) },
      { name: "MTTF", kind: "n", label: "MTTF", value: (n) => seconds(n.mttf_s) },
      { name: "held", kind: "n", label: "held", value: (n) => seconds(n.held_s) },
      { name: "at work", kind: "n", label: "at work", value: (n) => seconds(n.group_s) },
      { name: "standby", kind: "n", label: "standby", value: (n) => seconds(n.standby_s) },
      { name: "idle", kind: "n", label: "idle", value: (n) => seconds(n.idle_s) },
      { name: "causes", kind: "full", value: (n) => [...n.causes.map(cause), ...(n.excluded ? [`excluded ${plural(n.excluded, "time")}`] : [])].join(", ") || "–" },
    ], report.nodes, "wide", 50);
  };
  const formulas = () => {
    const list = make("dl"), say = (name, text) => list.append(make("dt", null, name), make("dd", null, text));
    say("goodput", "trained / (trained + lost): seconds of groups; steps that were undone do not count as trained");
    say("step efficiency", "committed / (committed + aborted), less the share of steps that were undone");
    say("training efficiency", `step efficiency × mean quorum / groups: ${percent(report.ratios.training_efficiency)} in this run`);
    say("with the queue", `trained / (trained + lost + waiting for nodes), ETTR: ${percent(report.ratios.effective)} in this run`);
    say("MTTF", "time in which a group was up / failures; moves are none");
    section("Formulas").append(list, make("p", "soft", "ftslurm help causes explains them, with their sources."));
  };

  head();
  if (report.groups.length) {
    total();
    overTime();
    lost();
    failures();
    nodes();
    formulas();
  }
  ticks();
  addEventListener("resize", ticks);
  addEventListener("scroll", () => tip.hidden || document.activeElement?.classList.contains("plot") || hide(), { passive: true });
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
})();
