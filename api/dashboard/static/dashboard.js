// Makes the pages live: fragments rendered by the service are swapped in, and the chart is drawn from the API's JSON.
// Nothing here builds HTML out of data.

const SETTLE_MS = 350; // events come in bursts; one refresh answers a whole burst
const POLL_MS = 4000;

async function fetchText(url) {
  const answer = await fetch(url, { headers: { Accept: "text/html" } });
  if (answer.redirected && new URL(answer.url).pathname === "/login") window.location.reload();
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.text();
}

async function fetchJson(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.json();
}

/** Runs `work` at most once at a time; a call meanwhile means one more run afterwards. */
function serialised(work) {
  let running = false;
  let again = false;
  return async function run() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      await work();
    } catch (fault) {
      console.warn("refresh failed", fault);
    } finally {
      running = false;
    }
    if (again) {
      again = false;
      run();
    }
  };
}

function settled(work) {
  let timer = 0;
  return () => {
    if (!timer) {
      timer = setTimeout(() => {
        timer = 0;
        work();
      }, SETTLE_MS);
    }
  };
}

function liveJobs(root) {
  const refresh = serialised(async () => {
    root.innerHTML = await fetchText(root.dataset.source + window.location.search);
  });
  setInterval(() => {
    if (!document.hidden) refresh();
  }, POLL_MS);
}

// --- the chart ------------------------------------------------------------------------------------------------------

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function workloadNames() {
  return [...document.querySelectorAll(".tasks tbody tr td:first-child")].map((cell) =>
    [...cell.childNodes]
      .filter((node) => node.nodeType === Node.TEXT_NODE)
      .map((node) => node.textContent.trim())
      .join(""),
  );
}

/** A kernel's time with its unit, as the tables write it. */
function seconds(value) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (value >= scale) return `${Number((value / scale).toPrecision(3))} ${unit}`;
  }
  return `${Number((value * 1e9).toPrecision(3))} ns`;
}

/** 1, 2 and 5 times each power of ten round the data: a log axis that reads well over one decade and over five. */
function ticks(lines) {
  const all = lines.flatMap((line) => line.y);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of high / low > 1000 ? [1] : [1, 2, 5]) values.push(step * 10 ** power);
  }
  return { tickvals: values, ticktext: values.map(seconds) };
}

function line(points, y) {
  const values = points.map(y);
  return { x: points.map((p) => p.number), y: values, text: values.map(seconds) };
}

function traces(progress) {
  const names = workloadNames();
  const out = [];
  for (const { task, baseline, points } of progress.items) {
    const shade = colour(`--s${task % 8}`);
    // Names are shown as text: angle brackets would be read as markup by the chart library.
    const name = (names[task] || `task ${task}`).replace(/[<>&]/g, " ");
    const best = points.filter((p) => p.best_latency_s !== null);
    if (!best.length) continue;
    const valid = points.filter((p) => p.latency_s !== null);
    const common = { legendgroup: String(task), hovertemplate: "trial %{x}: %{text}<extra>%{fullData.name}</extra>" };
    out.push({
      ...common,
      ...line(valid, (p) => p.latency_s),
      name,
      mode: "markers",
      showlegend: false,
      marker: { color: shade, size: 5, opacity: 0.35 },
    });
    out.push({
      ...common,
      ...line(best, (p) => p.best_latency_s),
      name,
      mode: "lines",
      line: { color: shade, width: 2.2, shape: "hv" },
    });
    if (baseline && baseline.latency_s !== null) {
      out.push({
        ...common,
        ...line([points[0], points[points.length - 1]], () => baseline.latency_s),
        name: `${baseline.name}`.replace(/[<>&]/g, " "),
        mode: "lines",
        showlegend: false,
        line: { color: shade, width: 1.4, dash: "dash" },
      });
    }
  }
  return out;
}

function layout(lines) {
  const many = new Set(lines.map((trace) => trace.legendgroup)).size > 1;
  const text = colour("--muted");
  const grid = colour("--line");
  return {
    margin: { l: 76, r: 18, t: 8, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
    xaxis: { title: { text: "trial" }, gridcolor: grid, zeroline: false, rangemode: "tozero", linecolor: grid },
    yaxis: { title: { text: "latency" }, type: "log", gridcolor: grid, linecolor: grid, ...ticks(lines) },
    showlegend: many,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: colour("--card"), bordercolor: grid, font: { color: colour("--text") } },
    uirevision: "keep",
  };
}

async function drawCurve(job) {
  const curve = document.getElementById("curve");
  const lines = traces(await fetchJson(`/v1/jobs/${job}/progress?points=600`));
  document.getElementById("curve-empty").hidden = lines.length > 0;
  curve.hidden = lines.length === 0;
  if (!lines.length || !window.Plotly) return;
  await window.Plotly.react(curve, lines, layout(lines), { displayModeBar: false, responsive: true });
}

// --- one job --------------------------------------------------------------------------------------------------------

function liveJob(root) {
  const job = root.dataset.job;
  const filters = document.getElementById("filters");
  const trials = document.getElementById("trials");
  let cursor = "";

  const refreshTrials = serialised(async () => {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(filters)) if (value !== "") query.set(name, value);
    if (cursor) query.set("cursor", cursor);
    const html = await fetchText(`/fragments/jobs/${job}/trials?${query}`);
    // An open error text is being read: leave the rows alone.
    if (!trials.querySelector("details[open]")) trials.innerHTML = html;
  });
  const refreshJob = serialised(async () => {
    root.innerHTML = await fetchText(`/fragments/jobs/${job}`);
  });
  const refreshCurve = serialised(() => drawCurve(job));
  const refresh = settled(async () => {
    await refreshJob();
    if (!cursor) refreshTrials();
    refreshCurve();
  });

  filters.addEventListener("change", () => {
    cursor = "";
    refreshTrials();
  });
  trials.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-cursor]");
    if (!button) return;
    cursor = button.dataset.cursor;
    for (const open of trials.querySelectorAll("details[open]")) open.open = false;
    refreshTrials();
  });
  root.addEventListener("click", (event) => act(event, job, refresh));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refreshCurve);

  refreshCurve();
  if (root.dataset.final !== "yes") listen(job, root.dataset.after, refresh);
}

async function act(event, job, refresh) {
  const button = event.target.closest("button[data-action]");
  if (!button) return;
  const { action } = button.dataset;
  if (action === "cancel" && !window.confirm("Cancel this job for good? What it measured stays.")) return;
  button.disabled = true;
  const answer = await fetch(`/v1/jobs/${job}/${action}`, { method: "POST" });
  if (answer.ok) {
    refresh();
    return;
  }
  const problem = await answer.json();
  const fault = document.getElementById("action-fault");
  fault.textContent = problem.detail;
  fault.hidden = false;
  button.disabled = false;
}

function listen(job, after, refresh) {
  // The browser reconnects by itself with Last-Event-ID; an answer of 204 tells it that the job has ended.
  const source = new EventSource(`/v1/jobs/${job}/events?after=${after}`);
  for (const kind of ["job", "trial", "best", "model", "device"]) source.addEventListener(kind, refresh);
  source.addEventListener("error", refresh);
}

const root = document.querySelector("[data-live]");
if (root && root.dataset.live === "jobs") liveJobs(root);
if (root && root.dataset.live === "job") liveJob(root);
