// Listen to the server's event stream: which tables changed, and whether the store answers.

/**
 * @param {{ onTables: (names: string[]) => void, onStore: (fault: string | null) => void, onState: (live: boolean) => void }} listeners
 */
export function listen({ onTables, onStore, onState }) {
  const source = new EventSource("/api/events");
  source.onopen = () => onState(true);
  source.onerror = () => onState(false);
  source.onmessage = (event) => {
    const value = JSON.parse(event.data);
    if (value.tables) onTables(value.tables);
    if (value.store !== undefined) onStore(value.store);
  };
  return source;
}
