// Listen to the server's event stream while the page is visible: which tables changed, and whether the store answers.

/**
 * A browser opens six connections to a host over HTTP/1.1. The stream of a hidden tab, or of a page that the browser
 * keeps for its Back button (Chromium: a minute), would hold one, and the seventh page would wait for its data.
 *
 * @param {{ onTables: (names: string[]) => void, onStore: (fault: string | null) => void, onState: (live: boolean) => void }} listeners
 */
export function listen({ onTables, onStore, onState }) {
  /** @type {EventSource | null} */
  let source = null;

  function open() {
    if (source || document.hidden) return;
    source = new EventSource("/api/events");
    source.onopen = () => onState(true);
    source.onerror = () => onState(false);
    source.onmessage = (event) => {
      const value = JSON.parse(event.data);
      if (value.tables) onTables(value.tables);
      if (value.store !== undefined) onStore(value.store);
    };
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
