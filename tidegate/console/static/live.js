// Keeps a page up to date: the server says when something has changed, and the page is fetched again and changed in
// place. Elements with `data-still` keep what they hold: forms, charts, opened details.
(() => {
  "use strict";
  const LEAST_MS = 1000;
  const RETRY_MS = 5000;
  const body = document.body;
  if (!body.dataset.follows) return;
  const text = document.getElementById("connection-text");
  const connection = document.getElementById("connection");
  let waiting = null;
  let last = 0;

  const say = (words, lost) => {
    text.textContent = words;
    connection.classList.toggle("lost", lost);
  };

  const changes = (element) => !(element instanceof Element && element.hasAttribute("data-still"));

  const refresh = async () => {
    last = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html", "x-refresh": "1" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      Idiomorph.morph(document.getElementById("main"), fresh.getElementById("main"), {
        ignoreActiveValue: true,
        callbacks: { beforeNodeMorphed: changes, beforeNodeRemoved: changes },
      });
      say("live, " + new Date().toISOString().slice(11, 19) + " UTC", false);
      document.dispatchEvent(new Event("tidegate:refreshed"));
    } catch (error) {
      say("cannot update the page (" + error.message + ")", true);
    }
    waiting = null;
  };

  const schedule = () => {
    if (waiting === null && !document.hidden) {
      waiting = setTimeout(refresh, Math.max(0, last + LEAST_MS - Date.now()));
    }
  };

  const source = "/events" + (body.dataset.job ? "?job=" + encodeURIComponent(body.dataset.job) : "");
  let first = true;
  const connect = () => {
    const events = new EventSource(source);
    events.addEventListener("changed", () => {
      if (first) say("live", false);
      else schedule();
      first = false;
    });
    events.addEventListener("open", schedule);
    events.addEventListener("error", () => {
      say("connection lost, trying again", true);
      // A browser tries again by itself, but not after an answer such as the 502 of a proxy.
      if (events.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MS);
    });
  };
  connect();
  document.addEventListener("visibilitychange", schedule);
})();
