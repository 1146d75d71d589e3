"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const palette = ["#d1495b", "#00798c", "#edae49", "#6a4c93", "#2e8b57", "#e07a00", "#3d5a80", "#b5179e", "#8d6e63", "#5c7c00"];
  const colours = new Map();
  const hidden = new Set();
  for (const c of data.causes) {
    if (!colours.has(c.reason)) colours.set(c.reason, palette[colours.size % palette.length]);
  }

  // Everything that comes from a feature goes into the page as text, never as markup.
  const element = (tag, text, parent) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    if (parent) parent.append(e);
    return e;
  };

  // Web Mercator with the world 1 wide; y grows southwards, as on the screen.
  const clampLat = (lat) => Math.max(-85.0511, Math.min(85.0511, lat));
  const toX = (lon) => lon / 360 + 0.5;
  const toY = (lat) => 0.5 - Math.log(Math.tan(Math.PI / 4 + clampLat(lat) * Math.PI / 360)) / (2 * Math.PI);
  const toLon = (x) => (x - 0.5) * 360;
  const toLat = (y) => Math.atan(Math.exp((0.5 - y) * 2 * Math.PI)) * 360 / Math.PI - 90;

  // A geometry becomes lists of points, lines and polygons of projected positions.
  const project = (g, into) => {
    const line = (ps) => ps.map((p) => [toX(p[0]), toY(p[1])]);
    switch (g.type) {
      case "Point": into.points.push(...line([g.coordinates])); break;
      case "MultiPoint": into.points.push(...line(g.coordinates)); break;
      case "LineString": into.lines.push(line(g.coordinates)); break;
      case "MultiLineString": into.lines.push(...g.coordinates.map(line)); break;
      case "Polygon": into.polygons.push(g.coordinates.map(line)); break;
      case "MultiPolygon": into.polygons.push(...g.coordinates.map((p) => p.map(line))); break;
      case "GeometryCollection": g.geometries.forEach((m) => project(m, into)); break;
    }
    return into;
  };
  const boxOf = (shape) => {
    const box = [Infinity, Infinity, -Infinity, -Infinity];
    const take = ([x, y]) => {
      box[0] = Math.min(box[0], x); box[1] = Math.min(box[1], y);
      box[2] = Math.max(box[2], x); box[3] = Math.max(box[3], y);
    };
    shape.points.forEach(take);
    shape.lines.forEach((l) => l.forEach(take));
    shape.polygons.forEach((p) => p.forEach((r) => r.forEach(take)));
    return box;
  };
  const features = data.features.map((f, index) => {
    const shape = f.geometry ? project(f.geometry, { points: [], lines: [], polygons: [] }) : null;
    return { ...f, index, shape, box: shape ? boxOf(shape) : null };
  });
  const drawn = features.filter((f) => f.box && f.box[0] <= f.box[2]);

  const canvas = document.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const view = { x: 0.5, y: 0.5, scale: 1 }; // middle, and pixels per world
  let width = 0, height = 0, selected = null;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const screen = ([x, y]) => [(x - view.x) * view.scale + width / 2, (y - view.y) * view.scale + height / 2];
  const world = (px, py) => [(px - width / 2) / view.scale + view.x, (py - height / 2) / view.scale + view.y];
  const visible = (f) => !hidden.has(f.reason);

  const fit = (box, share) => {
    view.x = (box[0] + box[2]) / 2;
    view.y = (box[1] + box[3]) / 2;
    view.scale = Math.min(width / Math.max(box[2] - box[0], 1e-9), height / Math.max(box[3] - box[1], 1e-9), 2e9) * share;
  };
  const fitAll = () => {
    const shown = drawn.filter(visible);
    const box = shown.reduce((b, f) => [Math.min(b[0], f.box[0]), Math.min(b[1], f.box[1]), Math.max(b[2], f.box[2]), Math.max(b[3], f.box[3])], [Infinity, Infinity, -Infinity, -Infinity]);
    fit(shown.length ? box : [0, 0, 1, 1], 0.85);
    draw();
  };

  const trace = (ps) => ps.forEach((p, i) => pen[i ? "lineTo" : "moveTo"](...screen(p)));
  const drawFeature = (f) => {
    const colour = colours.get(f.reason);
    const on = f === selected;
    pen.strokeStyle = on ? style("--mark") : colour;
    pen.fillStyle = colour;
    pen.lineWidth = on ? 3 : 1.5;
    const dot = ([x, y]) => { pen.beginPath(); pen.arc(x, y, on ? 7 : 5, 0, 7); pen.fill(); pen.stroke(); };
    // What is too small to be seen is a dot.
    if (Math.max(f.box[2] - f.box[0], f.box[3] - f.box[1]) * view.scale < 6) {
      dot(screen([(f.box[0] + f.box[2]) / 2, (f.box[1] + f.box[3]) / 2]));
      return;
    }
    f.shape.points.forEach((p) => dot(screen(p)));
    f.shape.lines.forEach((l) => { pen.beginPath(); trace(l); pen.stroke(); });
    f.shape.polygons.forEach((rings) => {
      pen.beginPath();
      rings.forEach(trace);
      pen.globalAlpha = on ? 0.45 : 0.25;
      pen.fill("evenodd");
      pen.globalAlpha = 1;
      pen.stroke();
    });
  };
  const graticule = () => {
    const [west, north] = world(0, 0).map((v, i) => (i ? toLat(v) : toLon(v)));
    const [east, south] = world(width, height).map((v, i) => (i ? toLat(v) : toLon(v)));
    const steps = [45, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001];
    const step = steps.find((s) => (s / 360) * view.scale < 200) || steps[steps.length - 1];
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    pen.lineWidth = 1;
    pen.strokeStyle = style("--line");
    pen.fillStyle = style("--dim");
    pen.font = "11px system-ui, sans-serif";
    for (let lon = Math.ceil(Math.max(west, -180) / step) * step; lon <= Math.min(east, 180); lon += step) {
      const [x] = screen([toX(lon), 0]);
      pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke();
      pen.fillText(lon.toFixed(digits) + "°", x + 3, 12);
    }
    for (let lat = Math.ceil(Math.max(south, -85) / step) * step; lat <= Math.min(north, 85); lat += step) {
      const [, y] = screen([0, toY(lat)]);
      pen.beginPath(); pen.moveTo(0, y); pen.lineTo(width, y); pen.stroke();
      pen.fillText(lat.toFixed(digits) + "°", 3, y - 3);
    }
  };
  let asked = false;
  const draw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      const ratio = window.devicePixelRatio || 1;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, width, height);
      graticule();
      const [x0, y0] = world(-10, -10), [x1, y1] = world(width + 10, height + 10);
      for (const f of drawn) {
        if (f !== selected && visible(f) && f.box[2] >= x0 && f.box[0] <= x1 && f.box[3] >= y0 && f.box[1] <= y1) drawFeature(f);
      }
      if (selected && selected.box && visible(selected)) drawFeature(selected);
      // Where the features are on the screen, for tools that drive the page.
      document.body.dataset.drawn = String(drawn.filter(visible).length);
    });
  };
  const resize = () => {
    const ratio = window.devicePixelRatio || 1;
    const known = width > 0;
    width = canvas.clientWidth; height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    if (known) draw(); else fitAll();
  };

  const nearSegment = ([px, py], [ax, ay], [bx, by]) => {
    const dx = bx - ax, dy = by - ay, l = dx * dx + dy * dy;
    const t = l ? Math.max(0, Math.min(1, ((px - ax) * dx + (py - ay) * dy) / l)) : 0;
    return Math.hypot(px - ax - t * dx, py - ay - t * dy);
  };
  const nearLine = (p, line, reach) => line.some((b, i) => i > 0 && nearSegment(p, line[i - 1], b) <= reach);
  const inside = ([px, py], rings) => {
    let odd = false;
    for (const r of rings) {
      for (let i = 0, j = r.length - 1; i < r.length; j = i++) {
        const [ax, ay] = r[i], [bx, by] = r[j];
        if (ay > py !== by > py && px < (bx - ax) * (py - ay) / (by - ay) + ax) odd = !odd;
      }
    }
    return odd;
  };
  const at = (px, py) => {
    const reach = 7 / view.scale, p = world(px, py);
    return drawn.filter((f) => visible(f) &&
      p[0] >= f.box[0] - reach && p[0] <= f.box[2] + reach && p[1] >= f.box[1] - reach && p[1] <= f.box[3] + reach &&
      (Math.max(f.box[2] - f.box[0], f.box[3] - f.box[1]) * view.scale < 6 ||
        f.shape.points.some((q) => Math.hypot(q[0] - p[0], q[1] - p[1]) <= reach) ||
        f.shape.lines.some((l) => nearLine(p, l, reach)) ||
        f.shape.polygons.some((rings) => inside(p, rings) || rings.some((r) => nearLine(p, r, reach)))))
      .sort((a, b) => (a.box[2] - a.box[0]) * (a.box[3] - a.box[1]) - (b.box[2] - b.box[0]) * (b.box[3] - b.box[1]) || a.index - b.index);
  };

  const detail = document.getElementById("detail");
  const list = document.getElementById("features");
  const rows = new Map();
  const select = (f, move) => {
    if (selected && rows.has(selected)) rows.get(selected).removeAttribute("aria-current");
    selected = f;
    detail.replaceChildren();
    if (!f) {
      element("p", "Click a feature on the map or in the list.", detail);
      document.body.dataset.selected = "";
      draw();
      return;
    }
    element("h2", f.reason || "not yet replayed", detail);
    const dl = element("dl", undefined, detail);
    for (const [name, value] of [["feature", f.feature_id], ["message", f.error], ["rule", f.rule], ["batch", f.batch_id], ["status", f.status],
      ["source CRS", f.source_crs], ["attempts", f.attempts], ["row", f.id], ["on the map", f.geometry ? undefined : "no: the geometry or its place could not be read"]]) {
      if (value === undefined || value === "") continue;
      element("dt", name, dl);
      element("dd", String(value), dl);
    }
    document.body.dataset.selected = String(f.id);
    if (rows.has(f)) {
      rows.get(f).setAttribute("aria-current", "true");
      rows.get(f).scrollIntoView({ block: "nearest" });
    }
    if (move && f.box) fit(f.box, 0.35);
    draw();
  };

  const listed = 500;
  const fill = () => {
    list.replaceChildren();
    rows.clear();
    const shown = features.filter(visible);
    for (const f of shown.slice(0, listed)) {
      const b = element("button", (f.feature_id || "row " + f.id) + " · " + (f.reason || "not yet replayed") + (f.geometry ? "" : " · not on the map"), element("li", undefined, list));
      b.type = "button";
      b.addEventListener("click", () => select(f, true));
      rows.set(f, b);
    }
    if (shown.length > listed) element("p", "and " + (shown.length - listed) + " more", element("li", undefined, list));
    if (selected && rows.has(selected)) rows.get(selected).setAttribute("aria-current", "true");
  };
  const causes = document.getElementById("causes");
  const reasons = new Map();
  for (const c of data.causes) reasons.set(c.reason, (reasons.get(c.reason) || 0) + c.rows);
  for (const [reason, n] of reasons) {
    const label = element("label", undefined, element("li", undefined, causes));
    const box = element("input", undefined, label);
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(reason); else hidden.add(reason);
      if (selected && !visible(selected)) select(null);
      fill();
      draw();
    });
    const swatch = element("span", undefined, label);
    swatch.className = "swatch";
    swatch.style.background = colours.get(reason);
    element("span", reason || "not yet replayed", label);
    element("span", n.toLocaleString("en"), label).className = "count";
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (e) => {
    canvas.setPointerCapture(e.pointerId);
    drag = { x: e.offsetX, y: e.offsetY, moved: false };
  });
  canvas.addEventListener("pointermove", (e) => {
    const [x, y] = world(e.offsetX, e.offsetY);
    document.getElementById("place").textContent = toLon(x).toFixed(5) + "°, " + toLat(y).toFixed(5) + "°";
    if (!drag) return;
    const dx = e.offsetX - drag.x, dy = e.offsetY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    drag.moved = true;
    view.x -= dx / view.scale; view.y -= dy / view.scale;
    drag.x = e.offsetX; drag.y = e.offsetY;
    draw();
  });
  canvas.addEventListener("pointerup", (e) => {
    if (drag && !drag.moved) {
      // Clicking again goes through what lies on top of each other.
      const hits = at(e.offsetX, e.offsetY);
      select(hits.length ? hits[(hits.indexOf(selected) + 1) % hits.length] : null);
    }
    drag = null;
  });
  const zoom = (px, py, factor) => {
    const [x, y] = world(px, py);
    view.scale = Math.max(100, Math.min(2e9, view.scale * factor));
    view.x = x - (px - width / 2) / view.scale;
    view.y = y - (py - height / 2) / view.scale;
    draw();
  };
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    zoom(e.offsetX, e.offsetY, Math.exp(-e.deltaY / 300));
  }, { passive: false });
  document.getElementById("in").addEventListener("click", () => zoom(width / 2, height / 2, 2));
  document.getElementById("out").addEventListener("click", () => zoom(width / 2, height / 2, 0.5));
  document.getElementById("all").addEventListener("click", fitAll);
  new ResizeObserver(resize).observe(canvas);
  fill();
  select(null);
  resize();
  // Where a feature is in the window, for whoever drives the page.
  window.screenOf = (id) => {
    const f = drawn.find((d) => d.id === id);
    if (!f) return null;
    const [x, y] = screen([(f.box[0] + f.box[2]) / 2, (f.box[1] + f.box[3]) / 2]);
    const r = canvas.getBoundingClientRect();
    return [x + r.left, y + r.top];
  };
})();
