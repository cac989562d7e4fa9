// What a page can do with scripts on. All of it is on the page without them, for one target: the text in its colours,
// and a table of all scores. Nothing is loaded, and only text that the page holds is written, as text.
(() => {
  "use strict";
  const VISIBLE = 0.03, MAX_ALPHA = Number(document.documentElement.dataset.alpha || 0.6);
  const main = document.querySelector("main");
  const articles = [...document.querySelectorAll("article.dx-one")];
  const state = { words: false, shared: false, target: null };
  const kept = new WeakMap(); // what was read from an article's table

  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const written = (value, digits = 3) => (value < 0 ? "-" : "+") + Math.abs(value).toPrecision(digits).replace(/e\+?/, "e");
  const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + "\u00a0%";

  // The scores of an article, from its table: names of targets, [k][c], which sources are special, the model's values.
  function read(article) {
    if (kept.has(article)) return kept.get(article);
    const table = article.querySelector("table.dx-scores");
    let found = null;
    if (table) {
      const number = (cell) => Number(cell.textContent.replace("\u2212", "-")) || 0;
      const names = [...table.querySelectorAll("thead th bdi")].map((node) => node.textContent);
      const rows = [...table.tBodies[0].rows];
      const feet = [...(table.tFoot ? table.tFoot.rows : [])];
      const model = feet.find((row) => row.dataset.row === "model");
      found = {
        names,
        scores: rows.map((row) => [...row.querySelectorAll("td:not(.dx-place)")].map(number)),
        labels: rows.map((row) => row.querySelector("th").textContent),
        special: rows.map((row, k) => row.querySelector("th").classList.contains("dx-special") || (k === 0 && "sink" in article.dataset)),
        model: model ? [...model.querySelectorAll("td:not(.dx-place)")].map((cell) => cell.textContent) : [],
      };
    }
    kept.set(article, found);
    return found;
  }

  const columnOf = (data, name) => Math.max(0, data.names.indexOf(name));

  // One number for each source: a target's, or a target's less another's.
  function values(data, name, minus) {
    const c = columnOf(data, name), other = minus === undefined ? -1 : columnOf(data, minus);
    return data.scores.map((row) => row[c] - (other < 0 ? 0 : row[other]));
  }

  // The pieces of a text with their scores: of tokens, or of the words that they are part of.
  function pieces(text, scores) {
    const nodes = [...text.querySelectorAll("[data-k]")];
    const own = nodes.map((node) => node.dataset.k.split(" ").map(Number));
    if (!state.words) return nodes.map((node, n) => ({ node, at: own[n], score: sum(own[n], scores) }));
    const words = new Map();
    nodes.forEach((node, n) => {
      const word = node.dataset.w ?? "k" + node.dataset.k;
      words.set(word, [...new Set([...(words.get(word) || []), ...own[n]])]);
    });
    return nodes.map((node) => {
      const at = words.get(node.dataset.w ?? "k" + node.dataset.k);
      return { node, at, score: sum(at, scores) };
    });
  }
  const sum = (at, scores) => at.reduce((total, k) => total + scores[k], 0);

  function scaleOf(data, found) {
    const size = (list) => list.reduce((most, one) => Math.max(most, Math.abs(one.score)), 0);
    return size(found.filter((one) => !one.at.every((k) => data.special[k]))) || size(found) || 1;
  }

  const colour = (article, text, name, minus, scale) => paint(text, read(article), values(read(article), name, minus), scale);

  // The colours of a text; the score of the full one.
  function paint(text, data, scores, scale) {
    const found = pieces(text, scores), full = scale || scaleOf(data, found);
    const mass = scores.reduce((total, score) => total + Math.abs(score), 0) || 1;
    for (const { node, at, score } of found) {
      const share = Math.min(1, Math.abs(score) / full), seen = share >= VISIBLE;
      node.classList.toggle("dx-for", seen && score > 0);
      node.classList.toggle("dx-against", seen && score < 0);
      node.style.setProperty("--a", (share * MAX_ALPHA).toFixed(3));
      node.title = `${written(score)}, ${percent(Math.abs(score) / mass)} of all: ` + at.map((k) => `${data.labels[k]} #${k}`).join(", ");
    }
    return full;
  }

  // The controls of one text, made when it comes near the window.
  function equip(article) {
    const data = read(article), text = article.querySelector(".dx-text");
    if (!data || !text || article.dataset.ready) return;
    article.dataset.ready = "1";
    article.querySelectorAll(".dx-layers").forEach(slide);
    if (!article.querySelector("[data-k]")) return;
    const texts = [...article.querySelectorAll(".dx-text")];
    const says = make("p", { className: "dx-says" }, "Point at a token, or go through the text with the arrow keys.");
    says.setAttribute("role", "status");
    const target = make("select"), other = make("select");
    data.names.forEach((name) => target.append(make("option", { value: name, textContent: name })));
    other.append(make("option", { value: "", textContent: "nothing" }));
    data.names.forEach((name) => other.append(make("option", { value: name, textContent: name })));
    const bar = make("div", { className: "dx-tools" }, make("label", {}, "Target ", target));
    if (data.names.length > 1) bar.append(make("label", {}, "beside it ", other));
    if (articles.length > 1) {
      article.dxPin = make("button", { type: "button", textContent: "Set aside" });
      article.dxPin.setAttribute("aria-pressed", "false");
      article.dxPin.addEventListener("click", () => setAside(article));
      bar.append(article.dxPin);
    }
    texts[0].before(bar);
    texts[texts.length - 1].after(says);
    const heads = JSON.parse(article.querySelector(".dx-head").dataset.heads || "{}");
    article.dxTarget = () => target.value;
    article.dxPaint = () => {
      if (state.target !== null && data.names.includes(state.target) && state.target !== article.dxGlobal) {
        target.value = article.dxGlobal = state.target;
      }
      article.querySelectorAll(".dx-beside").forEach((node) => node.remove());
      const shared = state.shared ? sharedScale(target.value) : 0;
      let full = 0;
      for (const one of texts) full = Math.max(full, colour(article, one, target.value, undefined, shared));
      if (other.value && other.value !== target.value) beside(article, texts, target.value, other.value, shared);
      head(article, target.value, heads[target.value]);
      const scores = values(data, target.value);
      const range = `scores from ${written(Math.min(...scores))} to ${written(Math.max(...scores))}`;
      const of = { low: written(-full), high: written(full), name: target.value, range };
      article.querySelectorAll("[data-legend]").forEach((node) => (node.textContent = of[node.dataset.legend] ?? ""));
    };
    for (const one of [target, other]) one.addEventListener("change", () => { article.dxPaint(); layAside(); });
    for (const one of texts) explore(one, says, () => target.value);
    article.dxPaint();
  }

  // What is said above a text of the target that colours it: nothing else where the page has only one.
  function head(article, name, told) {
    if (!told) return;
    const [value, total, status, extent, sound] = told, part = (of) => article.querySelector(`[data-${of}]`);
    part("explained").replaceChildren(make("b", {}, make("bdi", {}, name)), `, ${value}`);
    part("sum").textContent = total;
    part("status").textContent = status;
    part("extent").textContent = extent;
    part("extent").className = sound ? "dx-sound" : "dx-unsound";
  }

  // One map of layers at a time, chosen by a slider, and what is under the pointer.
  function slide(details) {
    const maps = details.querySelector(".dx-maps"), figures = [...maps.querySelectorAll("figure")];
    const labels = JSON.parse(details.dataset.labels || "[]");
    const says = make("p", { className: "dx-says" });
    says.setAttribute("role", "status");
    const range = make("input", { type: "range", min: -1, max: figures.length - 1, value: -1 });
    const show = () => {
      const at = Number(range.value);
      maps.classList.toggle("dx-one-map", at >= 0);
      figures.forEach((figure, n) => (figure.hidden = at >= 0 && n !== at));
      says.textContent = at < 0 ? "all layers" : figures[at].querySelector("figcaption").textContent;
      range.setAttribute("aria-valuetext", says.textContent);
    };
    range.addEventListener("input", show);
    for (const image of maps.querySelectorAll("img")) {
      image.addEventListener("pointermove", (event) => {
        const box = image.getBoundingClientRect(), n = labels.length;
        const of = (part, whole) => Math.min(n - 1, Math.max(0, Math.floor((n * part) / whole)));
        const i = of(event.clientY - box.top, box.height), k = of(event.clientX - box.left, box.width);
        says.textContent = `position ${labels[i]} #${i}, source ${labels[k]} #${k}`;
      });
    }
    maps.before(make("div", { className: "dx-tools" }, make("label", {}, "Layer ", range)), says);
    show();
    details.open = articles.length === 1;
  }

  // The same text for another target, and for the difference of the two.
  function beside(article, texts, name, other, shared) {
    const last = texts[texts.length - 1];
    const rows = [[`${other}`, other, undefined], [`${name} less ${other}`, name, other]];
    let place = last;
    for (const [caption, first, minus] of rows) {
      const head = make("p", { className: "dx-note dx-beside" });
      place.after(head);
      place = head;
      let full = 0;
      for (const one of texts) {
        const copy = one.cloneNode(true);
        copy.classList.add("dx-beside");
        copy.removeAttribute("tabindex");
        place.after(copy);
        place = copy;
        full = Math.max(full, colour(article, copy, first, minus, shared));
      }
      head.append(make("bdi", {}, caption), `, full at ${written(full)}`);
    }
  }

  // A token's score and share, by pointer or by the arrow keys.
  function explore(text, says) {
    let at = -1;
    const nodes = () => [...text.querySelectorAll("[data-k]")];
    const tell = (node) => {
      text.querySelectorAll(".dx-here").forEach((one) => one.classList.remove("dx-here"));
      node.classList.add("dx-here");
      says.replaceChildren(make("b", {}, make("bdi", {}, node.textContent)), " ", node.title);
      at = nodes().indexOf(node);
    };
    text.tabIndex = 0;
    text.setAttribute("role", "group");
    text.setAttribute("aria-label", "text; the arrow keys go from token to token");
    text.addEventListener("pointerover", (event) => {
      const node = event.target.closest("[data-k]");
      if (node) tell(node);
    });
    text.addEventListener("keydown", (event) => {
      const right = getComputedStyle(text).direction === "rtl" ? -1 : 1;
      const step = { ArrowRight: right, ArrowDown: 1, ArrowLeft: -right, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const all = nodes();
      tell(all[Math.max(0, Math.min(all.length - 1, at + step))]);
    });
  }

  // One scale for all texts that have a target.
  const scales = new Map();
  function sharedScale(name) {
    const key = `${state.words} ${name}`;
    if (!scales.has(key)) {
      let most = 0;
      for (const article of articles) {
        const data = read(article);
        if (!data || !data.names.includes(name)) continue;
        const scores = values(data, name);
        for (const text of article.querySelectorAll(".dx-text:not(.dx-beside)")) most = Math.max(most, scaleOf(data, pieces(text, scores)));
      }
      scales.set(key, most);
    }
    return scales.get(key);
  }

  const repaint = () => {
    articles.forEach((article) => article.dxPaint && article.dxPaint());
    layAside();
  };

  // Two texts side by side; of two explanations of the same sources their difference, too.
  const pinned = [];
  function setAside(article) {
    const index = pinned.indexOf(article);
    if (index >= 0) pinned.splice(index, 1);
    else pinned.push(article);
    if (pinned.length > 2) pinned.shift();
    for (const one of articles) one.dxPin?.setAttribute("aria-pressed", pinned.includes(one));
    layAside();
  }

  function layAside() {
    document.querySelector(".dx-aside")?.remove();
    if (!pinned.length) return;
    const aside = make("section", { className: "dx-aside" });
    aside.setAttribute("aria-label", "set aside");
    for (const one of pinned) {
      const copy = one.cloneNode(true);
      copy.hidden = false;
      copy.querySelectorAll(".dx-tools, .dx-says, details, [id]").forEach((node) => node.remove());
      copy.querySelectorAll("[tabindex]").forEach((node) => node.removeAttribute("tabindex"));
      const back = make("button", { type: "button", textContent: "Put back" });
      back.addEventListener("click", () => {
        setAside(one);
        (document.querySelector(".dx-aside button") ?? one.dxPin).focus(); // this button is gone
      });
      copy.prepend(make("div", { className: "dx-tools" }, back));
      aside.append(copy);
    }
    if (pinned.length === 2) aside.append(...less(...pinned));
    articles[0].parentNode.insertBefore(aside, first());
  }

  // The chosen target of one explanation less that of another, where both have the same sources.
  function less(one, other) {
    const [a, b] = [one, other].map(read), [name, minus] = [one, other].map((article) => article.dxTarget());
    if (a.labels.join("\n") !== b.labels.join("\n")) return [];
    const of = values(b, minus), scores = values(a, name).map((score, k) => score - of[k]);
    const box = make("article", { className: "decompx-fast dx-less" }), note = make("p", { className: "dx-note" });
    box.append(note);
    let full = 0;
    for (const text of one.querySelectorAll(".dx-text:not(.dx-beside)")) {
      const copy = text.cloneNode(true);
      copy.removeAttribute("tabindex");
      box.append(copy);
      full = Math.max(full, paint(copy, a, scores));
    }
    const called = (article, target) => [article.dataset.place, target].filter(Boolean).join(", ");
    note.append("Difference: ", make("bdi", {}, called(one, name)), " less ", make("bdi", {}, called(other, minus)), `, full at ${written(full)}; green is more in the first`);
    return [box];
  }

  const first = () => document.querySelector("main > article.dx-one");

  // Above all texts: search, filter, order.
  if (articles.length > 1) {
    const labels = [...new Set(articles.map((article) => article.dataset.label).filter(Boolean))].sort();
    const targets = [...new Set(articles.slice(0, 10).flatMap((article) => read(article)?.names ?? []))].slice(0, 100);
    const search = make("input", { type: "search", placeholder: "in a text, or a name" });
    const label = make("select", {}, make("option", { value: "", textContent: "all" }));
    labels.forEach((name) => label.append(make("option", { value: name, textContent: name })));
    const order = make("select");
    for (const [value, name] of [["", "as given"], ["p", "probability, lowest first"], ["-p", "probability, highest first"], ["-error", "completeness error"], ["label", "predicted label"], ["-n", "length"]])
      order.append(make("option", { value, textContent: name }));
    const target = make("select", {}, make("option", { value: "", textContent: "of each text" }));
    targets.forEach((name) => target.append(make("option", { value: name, textContent: name })));
    const words = make("input", { type: "checkbox" }), shared = make("input", { type: "checkbox" });
    const count = make("p", { className: "dx-note" });
    count.setAttribute("role", "status");
    const bar = make("form", { className: "decompx-fast dx-tools dx-all" },
      make("label", {}, "Search ", search), make("label", {}, "Predicted ", label), make("label", {}, "Order ", order),
      make("label", {}, "Target ", target), make("label", {}, words, " words"), make("label", {}, shared, " one scale for all"), count);
    bar.setAttribute("aria-label", "texts");
    bar.addEventListener("submit", (event) => event.preventDefault());
    const texts = new Map();
    const textOf = (article) => {
      if (!texts.has(article)) texts.set(article, ((article.dataset.place || "") + " " + [...article.querySelectorAll(".dx-text")].map((node) => node.textContent).join(" ")).toLowerCase());
      return texts.get(article);
    };
    const filter = () => {
      const wanted = search.value.trim().toLowerCase();
      let left = 0;
      for (const article of articles) {
        article.hidden = Boolean((label.value && article.dataset.label !== label.value) || (wanted && !textOf(article).includes(wanted)));
        left += !article.hidden;
      }
      count.textContent = `${left} of ${articles.length}`;
    };
    const sort = () => {
      const key = order.value.replace("-", ""), sign = order.value.startsWith("-") ? -1 : 1;
      const value = (article) => (key === "label" ? article.dataset.label ?? "" : Number(article.dataset[key] ?? NaN));
      const sorted = key ? [...articles].sort((a, b) => {
        const x = value(a), y = value(b);
        return key === "label" ? x.localeCompare(y) : sign * ((Number.isNaN(x) ? sign * Infinity : x) - (Number.isNaN(y) ? sign * Infinity : y)) || 0;
      }) : articles;
      main.append(...sorted);
    };
    search.addEventListener("input", filter);
    label.addEventListener("change", filter);
    order.addEventListener("change", sort);
    target.addEventListener("change", () => { state.target = target.value || null; repaint(); });
    words.addEventListener("change", () => { state.words = words.checked; repaint(); });
    shared.addEventListener("change", () => { state.shared = shared.checked; repaint(); });
    articles[0].before(bar);
    count.textContent = `${articles.length} of ${articles.length}`;
  } else if (articles.length) {
    const words = make("input", { type: "checkbox" });
    words.addEventListener("change", () => { state.words = words.checked; repaint(); });
    if (articles[0].querySelector("[data-w]")) articles[0].before(make("div", { className: "decompx-fast dx-tools dx-all" }, make("label", {}, words, " words")));
  }

  // Only what is near the window has its controls made, so that a page of a thousand texts opens at once.
  if ("IntersectionObserver" in window && articles.length > 20) {
    const near = new IntersectionObserver((entries) => entries.forEach((entry) => {
      if (entry.isIntersecting) { near.unobserve(entry.target); equip(entry.target); }
    }), { rootMargin: "600px" });
    articles.forEach((article) => near.observe(article));
  } else articles.forEach(equip);
  main.dataset.scripts = "on";
})();
