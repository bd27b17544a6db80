/**
 * The generated types of a database, as the client uses them. `abide-types` writes them; `builtin.ts` has those
 * of the built-in modules.
 */
import type { BuiltinSchema } from "./builtin.js";

/** The types of a database. */
export interface Schema {
  /** The rows of tables by name. */
  tables: object;
  /** The reducers by name. */
  reducers: object;
}

/** Arguments and result of a reducer. */
export interface Reducer {
  args: object;
  result: unknown;
}

/** The names of the reducers. */
export type ReducerName<S extends Schema> = keyof S["reducers"] & string;

/** The arguments of a reducer. */
export type ArgsOf<S extends Schema, Name extends keyof S["reducers"]> = S["reducers"][Name] extends {
  args: infer Args;
}
  ? Args
  : never;

/** The result of a reducer. */
export type ResultOf<S extends Schema, Name extends keyof S["reducers"]> = S["reducers"][Name] extends {
  result: infer Result;
}
  ? Result
  : never;

/** The row of a table. */
export type RowOf<S extends Schema, Name extends keyof S["tables"]> = S["tables"][Name];

export type { BuiltinSchema };
