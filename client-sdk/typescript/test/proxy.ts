/** A TCP proxy between client and server, which cuts connections, loses answers, or goes silent. */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server as TcpServer, type Socket } from "node:net";

export class Proxy {
  readonly #server: TcpServer;
  readonly #pairs = new Set<[Socket, Socket]>();
  #losesAnswer = false;

  private constructor(server: TcpServer) {
    this.#server = server;
  }

  /** Forwards to a port that is read for each connection. */
  static async to(port: () => number): Promise<Proxy> {
    const server = createServer();
    const proxy = new Proxy(server);
    server.on("connection", (client) => proxy.#forward(client, port()));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Cuts all connections. */
  cut(): void {
    for (const [client, server] of this.#pairs) {
      client.destroy();
      server.destroy();
    }
  }

  /** Cuts the connection on which the server sends next, instead of forwarding that. */
  loseAnswer(): void {
    this.#losesAnswer = true;
  }

  /** Connections stay open, but nothing is forwarded on those that exist now. */
  silence(): void {
    for (const [client, server] of this.#pairs) {
      client.removeAllListeners("data").resume();
      server.removeAllListeners("data").resume();
    }
  }

  close(): void {
    this.#server.close();
    this.cut();
  }

  #forward(client: Socket, port: number): void {
    const server = connect({ host: "127.0.0.1", port, noDelay: true });
    client.setNoDelay(true);
    const pair: [Socket, Socket] = [client, server];
    this.#pairs.add(pair);
    const cut = () => {
      this.#pairs.delete(pair);
      client.destroy();
      server.destroy();
    };
    client.on("data", (bytes) => server.write(bytes));
    server.on("data", (bytes) => {
      if (!this.#losesAnswer) return void client.write(bytes);
      this.#losesAnswer = false;
      cut();
    });
    for (const socket of pair) socket.on("close", cut).on("error", cut);
  }
}
