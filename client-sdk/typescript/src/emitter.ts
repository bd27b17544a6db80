/** A small typed event emitter that also works in browsers. */

/** Calls listeners in the order in which they were added. */
export class Emitter<Events extends { [name in keyof Events]: unknown[] }> {
  readonly #listeners: { [Name in keyof Events]?: Set<(...args: Events[Name]) => void> } = {};

  /** Adds a listener. Returns a function that removes it. */
  on<Name extends keyof Events>(name: Name, listener: (...args: Events[Name]) => void): () => void {
    (this.#listeners[name] ??= new Set()).add(listener);
    return () => this.off(name, listener);
  }

  /** Removes a listener. */
  off<Name extends keyof Events>(name: Name, listener: (...args: Events[Name]) => void): void {
    this.#listeners[name]?.delete(listener);
  }

  /** Calls the listeners. */
  protected emit<Name extends keyof Events>(name: Name, ...args: Events[Name]): void {
    for (const listener of Array.from(this.#listeners[name] ?? [])) {
      try {
        listener(...args);
      } catch (error) {
        // The bug of a listener must not look like a bad message of the server: it is an uncaught exception.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }

  /** Removes all listeners. */
  protected removeListeners(): void {
    for (const name of Object.keys(this.#listeners) as (keyof Events)[]) delete this.#listeners[name];
  }
}
