"use strict";
// Data reaches the page as text nodes only; nothing here writes HTML.

function data(name) {
  return JSON.parse(document.getElementById("data-" + name).textContent);
}

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined && text !== null) element.textContent = String(text);
  return element;
}

function short(value) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

// --- curves -------------------------------------------------------------------------------------

function setUpCurves() {
  const { steps, series } = data("curves");
  const curves = [];
  let at = -1;

  function show(index) {
    at = index;
    for (const curve of curves) curve.show(index);
  }

  const smoothing = document.getElementById("smoothing");
  if (smoothing) {
    smoothing.value = 0; // whatever the browser kept from another visit
    smoothing.addEventListener("input", () => {
      const reach = Number(smoothing.value);
      for (const curve of curves) curve.smooth(reach);
      const told = reach ? `mean of ${2 * reach + 1} steps; readings are of single steps` : "off";
      document.querySelector('output[for="smoothing"]').textContent = told;
    });
  }

  for (const figure of document.querySelectorAll("figure.curve")) {
    const [left, across, first, last] = figure.dataset.x.split(" ").map(Number);
    const [top, down, low, high] = figure.dataset.y.split(" ").map(Number);
    const svg = figure.querySelector("svg");
    const cross = figure.querySelector(".cross");
    const spot = figure.querySelector(".spot");
    const output = figure.querySelector("output");
    const rest = output.textContent;
    const values = series[figure.dataset.metric];
    const x = (step) => left + across * (last > first ? (step - first) / (last - first) : 0.5);
    const y = (value) => top + down * (1 - (value - low) / (high - low));

    curves.push({
      // The mean of the known values up to `reach` steps to either side; 0 draws nothing.
      smooth(reach) {
        let pen = "M";
        let path = "";
        for (let i = 0; reach > 0 && i < values.length; i += 1) {
          const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter((v) => v !== null);
          if (values[i] === null) {
            pen = "M";
            continue;
          }
          const mean = near.reduce((sum, value) => sum + value, 0) / near.length;
          path += `${pen}${x(steps[i]).toFixed(2)} ${y(mean).toFixed(2)}`;
          pen = "L";
        }
        figure.querySelector(".smooth").setAttribute("d", path);
        figure.classList.toggle("smoothed", reach > 0);
      },
      show(index) {
        if (index < 0) {
          cross.setAttribute("d", "");
          spot.setAttribute("cx", -9);
          output.textContent = rest;
          return;
        }
        const value = values[index];
        cross.setAttribute("d", `M${x(steps[index])} ${top}v${down}`);
        spot.setAttribute("cx", value === null ? -9 : x(steps[index]));
        spot.setAttribute("cy", value === null ? -9 : y(value));
        output.textContent = `step ${steps[index]}: ${short(value)}`;
      },
    });

    function point(event) {
      const box = svg.getBoundingClientRect();
      const inside = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const step = first + ((inside - left) / across) * (last - first);
      let best = 0;
      for (let i = 1; i < steps.length; i += 1) {
        if (Math.abs(steps[i] - step) < Math.abs(steps[best] - step)) best = i;
      }
      show(best);
    }
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", (event) => {
      // A finger that is lifted leaves its reading on the page.
      if (event.pointerType === "mouse") show(-1);
    });
    // All curves follow one pointer; only the focused one is read out.
    svg.addEventListener("focus", () => output.setAttribute("aria-live", "polite"));
    svg.addEventListener("blur", () => {
      output.setAttribute("aria-live", "off");
      show(-1);
    });
    svg.addEventListener("keydown", (event) => {
      const end = steps.length - 1;
      const start = at < 0 ? end : at;
      const moves = { ArrowLeft: start - 1, ArrowRight: start + 1, Home: 0, End: end };
      if (event.key === "Escape") show(-1);
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(Math.min(end, Math.max(0, moves[event.key])));
    });
  }
}

// --- transcripts --------------------------------------------------------------------------------

function setUpViewer() {
  const { passages, questions, pieces } = data("transcripts");
  const list = document.getElementById("list");
  const pane = document.getElementById("transcript");
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const buttons = [...document.querySelectorAll("#viewer button[data-kind]")];
  const choices = [...document.querySelectorAll("#viewer select[data-field]")];
  const words = (name) => name.replaceAll("_", " ");
  let kind = "all";
  let selected = null;
  let listed = questions;

  for (const question of questions) {
    question.haystack = haystack(question, passages);
    const button = make("button");
    button.type = "button";
    button.append(make("span", "badge " + question.kind, words(question.kind)));
    const text = make("span", "text", question.question);
    text.dir = "auto";
    button.append(text);
    button.tabIndex = -1; // one stop of the Tab key for the whole list, see below
    button.addEventListener("click", () => {
      select(question);
      history.replaceState(null, "", fragment(question));
      // On a narrow page the transcript lies below the list.
      if (pane.getBoundingClientRect().top > window.innerHeight * 0.7) {
        pane.scrollIntoView({ block: "start" });
      }
    });
    question.item = make("li");
    question.item.append(button);
    question.button = button;
    list.append(question.item);
  }

  function select(question) {
    if (selected) {
      selected.button.removeAttribute("aria-current");
      selected.button.tabIndex = -1;
    }
    selected = question;
    pane.replaceChildren();
    if (!question) return;
    question.button.setAttribute("aria-current", "true");
    question.button.tabIndex = 0;
    pane.append(transcript(question, passages, pieces, words));
  }

  list.addEventListener("keydown", (event) => {
    const end = listed.length - 1;
    const at = listed.findIndex((question) => question.button === document.activeElement);
    const moves = { ArrowUp: at - 1, ArrowDown: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: end };
    if (at < 0 || !(event.key in moves)) return;
    event.preventDefault();
    const question = listed[Math.min(end, Math.max(0, moves[event.key]))];
    select(question);
    history.replaceState(null, "", fragment(question));
    question.button.focus();
  });

  function filter() {
    const wanted = search.value.trim().toLowerCase();
    const shown = questions.filter(
      (question) =>
        (kind === "all" || question.kind === kind) &&
        choices.every((choice) => !choice.value || valueOf(question, choice) === choice.value) &&
        question.haystack.includes(wanted),
    );
    listed = shown;
    list.replaceChildren(...shown.map((question) => question.item));
    count.textContent = shown.length === 1 ? "1 question" : `${shown.length} questions`;
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
    }
    if (!shown.includes(selected)) select(shown[0] || null);
  }

  for (const button of buttons) {
    button.addEventListener("click", () => {
      kind = button.dataset.kind;
      filter();
    });
  }
  for (const choice of choices) choice.addEventListener("change", filter);
  search.addEventListener("input", filter);
  filter();

  // A fragment names one question; it is shown whatever was filtered.
  function follow() {
    if (!location.hash.startsWith(FRAGMENT)) return;
    let id = "";
    try {
      id = decodeURIComponent(location.hash.slice(FRAGMENT.length));
    } catch {
      return;
    }
    const question = questions.find((one) => one.id === id);
    if (!question) {
      count.textContent = `Question ${id} is not on this page.`;
      return;
    }
    kind = "all";
    search.value = "";
    for (const choice of choices) choice.value = "";
    filter();
    select(question);
    question.item.scrollIntoView({ block: "nearest" });
    document.getElementById("transcripts").scrollIntoView();
    pane.focus({ preventScroll: true });
  }
  window.addEventListener("hashchange", follow);
  follow();
}

const FRAGMENT = "#question=";

function fragment(question) {
  return FRAGMENT + encodeURIComponent(question.id);
}

function valueOf(question, choice) {
  const field = choice.dataset.field;
  return field === "type" ? question.type : question[field].outcome;
}

function haystack(question, passages) {
  const found = [question.id, question.question, question.type, ...question.golden];
  for (const side of [question.before, question.after]) {
    found.push(side.prediction, side.outcome.replaceAll("_", " "));
    for (const turn of side.turns) {
      found.push(turn.reasoning, turn.content, turn.raw);
      for (const result of turn.results || []) {
        found.push(result.query, result.error);
        for (const [place] of result.passages) found.push(passages[place][1], passages[place][2]);
      }
    }
  }
  return found.filter(Boolean).join("\n").toLowerCase();
}

function transcript(question, passages, pieces, words) {
  const whole = document.createDocumentFragment();
  const title = make("h3", "", question.question);
  title.dir = "auto";
  whole.append(title);
  const facts = make("dl", "facts");
  fact(facts, "golden answers", question.golden.join(" | "));
  if (question.type) fact(facts, "type", question.type);
  fact(facts, "id", question.id);
  whole.append(facts);
  const link = make("a", "permalink", "Link to this question");
  link.href = fragment(question);
  whole.append(link);
  const sides = make("div", "sides");
  const pattern = goldenPattern(question.golden);
  for (const name of ["before", "after"]) {
    sides.append(side(name, question[name], passages, pieces, pattern, words));
  }
  whole.append(sides);
  return whole;
}

function fact(facts, name, value) {
  facts.append(make("dt", "", name));
  const text = make("dd", "", value);
  text.dir = "auto";
  facts.append(text);
}

function side(name, row, passages, pieces, pattern, words) {
  const box = make("section", "side " + name);
  box.append(make("h4", "", name));
  const facts = make("dl", "facts");
  fact(facts, "outcome", words(row.outcome));
  fact(facts, "prediction", row.prediction === null ? "none" : row.prediction);
  fact(facts, "F1", short(row.f1));
  if (row.seconds !== undefined) fact(facts, "seconds", short(row.seconds));
  box.append(facts);
  row.turns.forEach((turn, i) => box.append(oneTurn(turn, i + 1, passages, pieces, pattern)));
  if (!row.turns.length) box.append(make("p", "", "No turn was generated."));
  return box;
}

function oneTurn(turn, number, passages, pieces, pattern) {
  const box = make("div", "turn");
  box.append(make("h5", "", `Turn ${number}, ${turn.tokens || 0} tokens`));
  if (turn.reasoning) box.append(said("reasoning", turn.reasoning));
  for (const [name, args, status] of turn.calls || []) {
    const text = typeof args === "string" ? args : JSON.stringify(args);
    box.append(said("call", `${name}(${text})` + (status === "ok" ? "" : ` – ${status}`)));
  }
  if (turn.content) box.append(said("answer", turn.content, pattern));
  if (turn.raw) box.append(said("raw completion", turn.raw));
  if (turn.lp) box.append(logProbs(turn.lp, pieces));
  for (const result of turn.results || []) box.append(found(result, passages, pattern));
  return box;
}

// A turn's sampled tokens, each over its log-probability; made when it is opened.
function logProbs(flat, pieces) {
  const box = make("details", "logprobs");
  box.append(make("summary", "", "Log-probabilities of the tokens"));
  box.addEventListener("toggle", () => {
    if (!box.open || box.querySelector("ol")) return;
    const list = make("ol", "tokens");
    let sum = 0;
    for (let i = 0; i < flat.length; i += 2) {
      const nats = flat[i + 1] / 100;
      sum += nats;
      const doubt = nats > -0.105 ? 0 : nats > -0.693 ? 1 : nats > -2.303 ? 2 : 3;
      const item = make("li", "token doubt-" + doubt);
      // Spaces and line breaks are part of a token: shown as marks.
      const text = make("span", "piece", pieces[flat[i]].replace(/ /g, "␣").replace(/\n/g, "⏎"));
      text.dir = "auto";
      item.append(text, make("span", "nats", nats.toFixed(2)));
      list.append(item);
    }
    const tokens = flat.length / 2;
    box.append(
      list,
      make("p", "", `${tokens} tokens, sum ${sum.toFixed(2)} nats; marked in three grades: probability below 90, 50, 10 %.`),
    );
  });
  return box;
}

function said(label, text, pattern) {
  const line = make("div", "said " + label.replaceAll(" ", "-"));
  line.append(make("span", "label", label));
  const body = make("div", "body");
  body.dir = "auto";
  // Spaces at either end are the tokens' business, not the text's.
  highlight(body, String(text).replace(/^[ \n]+|[ \n]+$/g, ""), pattern);
  line.append(body);
  return line;
}

function found(result, passages, pattern) {
  const box = make("div", "found");
  if (result.error) box.append(said("error", result.error));
  if (result.query) box.append(said("found for", result.query));
  const items = make("ol");
  for (const [place, score] of result.passages) {
    const [, title, text] = passages[place];
    const item = make("li");
    const head = make("strong");
    head.dir = "auto";
    highlight(head, title, pattern);
    const body = make("div");
    body.dir = "auto";
    highlight(body, text, pattern);
    item.append(head, " ", make("span", "score", typeof score === "number" ? score.toFixed(3) : ""), body);
    items.append(item);
  }
  if (result.passages.length) box.append(items);
  return box;
}

function goldenPattern(golden) {
  const parts = golden
    .map((answer) => answer.trim())
    .filter(Boolean)
    .sort((a, b) => b.length - a.length)
    .map((answer) => answer.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  if (!parts.length) return null;
  // On word borders, so that "Rome" is not marked in "Jerome".
  return new RegExp(`(?<![\\p{L}\\p{N}])(?:${parts.join("|")})(?![\\p{L}\\p{N}])`, "giu");
}

function highlight(element, text, pattern) {
  const whole = text === null || text === undefined ? "" : String(text);
  let end = 0;
  for (const match of pattern ? whole.matchAll(pattern) : []) {
    element.append(whole.slice(end, match.index), make("mark", "golden", match[0]));
    end = match.index + match[0].length;
  }
  element.append(whole.slice(end));
}

document.documentElement.classList.add("scripted");
setUpCurves();
setUpViewer();
