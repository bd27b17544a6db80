/** Writes the TypeScript types of a database from the answers of `/v1/schema` and `/openapi.json`. */

/** A column in `/v1/schema`. */
interface SchemaColumn {
  name: string;
  type: string;
  nullable: boolean;
  json: boolean;
  description?: string;
}

/** The answer of `/v1/schema`. */
export interface DatabaseSchema {
  tables: { name: string; columns: SchemaColumn[]; description?: string }[];
  views: { name: string; columns: string[] }[];
  reducers: {
    name: string;
    description?: string;
    arguments: JsonSchema;
    result: JsonSchema;
  }[];
}

/** The part of a JSON Schema that Abide uses. */
export interface JsonSchema {
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  type?: string | string[];
  const?: unknown;
  enum?: unknown[];
  anyOf?: JsonSchema[];
  oneOf?: JsonSchema[];
  allOf?: JsonSchema[];
  items?: JsonSchema | boolean;
  properties?: Record<string, JsonSchema | boolean>;
  additionalProperties?: JsonSchema | boolean;
  required?: string[];
  description?: string;
}

/** The content of the generated file. */
export interface TypegenOptions {
  /** A prefix of the names of the interfaces. */
  prefix?: string;
  /** Where the types `Json` and `SqlValue` are imported from. */
  imports?: string;
}

/** The text of a `.d.ts` file. */
export function typesOf(
  schema: DatabaseSchema,
  errorCodes: readonly string[],
  { prefix = "", imports = "@abide/client" }: TypegenOptions = {},
): string {
  const results = schema.reducers.map(({ result }) => result);
  const tables = schema.tables.map((table) =>
    field(table.name, rowType(table.columns, results), table.description),
  );
  const views = schema.views.map(({ name, columns }) => {
    const cells = columns.map((column) => field(column, "SqlValue"));
    return field(name, block(cells), "A view.");
  });
  const reducers = schema.reducers.map(({ name, description, arguments: args, result }) => {
    const types = [
      field("args", typeOf(args, new Scope(args, "args"))),
      field("result", resultType(result, schema, prefix)),
    ];
    return field(name, block(types), description);
  });
  const used = [tables, views, reducers].flat().join("\n");
  const imported = ["Json", "SqlValue"].filter((name) => new RegExp(`\\b${name}\\b`).test(used));
  const codes = errorCodes.map((code) => `  | ${JSON.stringify(code)}`).join("\n");
  return [
    "// Written by abide-types from the schema of a database. Do not edit it.",
    "",
    ...(imported.length > 0
      ? [`import type { ${imported.join(", ")} } from ${JSON.stringify(imports)};`, ""]
      : []),
    "/** The rows of the tables and views by name. Integers beyond 2^53 - 1 arrive as `bigint`. */",
    `export interface ${prefix}Tables ${block([...tables, ...views])}`,
    "",
    "/** The arguments and results of the reducers by name. */",
    `export interface ${prefix}Reducers ${block(reducers)}`,
    "",
    "/** The codes with which the server refuses. */",
    `export type ${prefix}ErrorCode =\n${codes};`,
    "",
    "/** The type parameter of `Abide`. */",
    `export interface ${prefix}Schema ${block([
      field("tables", `${prefix}Tables`),
      field("reducers", `${prefix}Reducers`),
    ])}`,
    "",
  ].join("\n");
}

/** The error codes in `/openapi.json`. */
export function errorCodesOf(openapi: unknown): string[] {
  const document = openapi as {
    components?: { schemas?: { problem?: { properties?: { code?: { enum?: string[] } } } } };
  };
  return document.components?.schemas?.problem?.properties?.code?.enum ?? [];
}

const CELL_TYPES: Record<string, string> = {
  TEXT: "string",
  INTEGER: "number",
  INT: "number",
  REAL: "number",
  BLOB: "Uint8Array",
};

function rowType(columns: SchemaColumn[], results: readonly JsonSchema[]): string {
  const row = results.find((result) => isRowOf(result, columns));
  return block(
    columns.map(({ name, type, nullable, json, description }) => {
      const cell = (row && enumOf(row, name)) ?? own(CELL_TYPES, type) ?? "SqlValue";
      const note = json ? `${description ?? ""} JSON text.`.trim() : description;
      return field(name, nullable ? `${cell} | null` : cell, note);
    }),
  );
}

/** The type of a result: that of the table if it is a row of it, without columns that differ in JSON. */
function resultType(result: JsonSchema, { tables }: DatabaseSchema, prefix: string): string {
  const table = tables.find(({ columns }) => isRowOf(result, columns));
  const scope = new Scope(result, "result");
  const isBoolean = (property: JsonSchema | boolean) => typeOf(property, scope).includes("boolean");
  const differs = Object.values(result.properties ?? {}).some(isBoolean);
  return table && !differs ? `${prefix}Tables[${JSON.stringify(table.name)}]` : typeOf(result, scope);
}

/** Whether a reducer returns rows of the table, so that its schema knows the values of enumerations. */
function isRowOf(result: JsonSchema, columns: readonly SchemaColumn[]): boolean {
  const names = Object.keys(result.properties ?? {});
  return names.length === columns.length && columns.every(({ name }) => names.includes(name));
}

function enumOf(row: JsonSchema, column: string): string | undefined {
  const property = own(row.properties, column);
  if (typeof property !== "object") return undefined;
  const resolved = new Scope(row, "result").resolve(property);
  const options = [resolved, ...(resolved.anyOf ?? []).map((one) => new Scope(row, "result").resolve(one))];
  const values = options.find((option) => option.enum !== undefined)?.enum;
  return values?.every((value) => typeof value === "string")
    ? values.map((value) => JSON.stringify(value)).join(" | ")
    : undefined;
}

/** Where references lead, and whether the schema describes arguments or a result. */
class Scope {
  constructor(
    readonly root: JsonSchema,
    readonly use: "args" | "result",
    readonly open: readonly string[] = [],
  ) {}

  resolve(schema: JsonSchema): JsonSchema {
    const name = schema.$ref?.split("/").at(-1);
    return (name !== undefined && own(this.root.$defs, name)) || schema;
  }

  /** The scope inside of a reference; `undefined` if the reference is inside of itself. */
  inside(reference: string): Scope | undefined {
    if (this.open.includes(reference)) return undefined;
    return new Scope(this.root, this.use, [...this.open, reference]);
  }

  get anything(): string {
    return this.use === "args" ? "unknown" : "Json";
  }
}

function typeOf(schema: JsonSchema | boolean, scope: Scope): string {
  if (typeof schema === "boolean") return schema ? scope.anything : "never";
  if (schema.$ref !== undefined) {
    const inside = scope.inside(schema.$ref);
    return inside ? typeOf(scope.resolve(schema), inside) : scope.anything;
  }
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return union(options.map((option) => typeOf(option, scope)));
  if (schema.allOf) return schema.allOf.map((part) => `(${typeOf(part, scope)})`).join(" & ");
  const types = schema.type === undefined ? [] : [schema.type].flat();
  if (types.length === 0) return schema.properties ? objectType(schema, scope) : scope.anything;
  return union(types.map((type) => plainType(type, schema, scope)));
}

function plainType(type: string, schema: JsonSchema, scope: Scope): string {
  switch (type) {
    case "string":
    case "boolean":
    case "null":
      return type;
    case "integer":
      return scope.use === "args" ? "number | bigint" : "number";
    case "number":
      return "number";
    case "array":
      return `(${typeOf(schema.items ?? true, scope)})[]`;
    case "object":
      return objectType(schema, scope);
    default:
      return scope.anything;
  }
}

function objectType(schema: JsonSchema, scope: Scope): string {
  if (!schema.properties) {
    return `Record<string, ${typeOf(schema.additionalProperties ?? true, scope)}>`;
  }
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).map(([name, property]) => {
    const type = typeOf(property, scope);
    const isOptional = !required.has(name) && (scope.use === "args" || !type.includes("null"));
    const description = typeof property === "object" ? property.description : undefined;
    return field(name, isOptional ? `${type} | undefined` : type, description, isOptional);
  });
  return block(fields);
}

function union(types: readonly string[]): string {
  return Array.from(new Set(types)).join(" | ");
}

/** A property with a name that the server chose: `constructor` is one only if it is there. */
function own<T>(object: Record<string, T> | undefined, name: string): T | undefined {
  return object && Object.hasOwn(object, name) ? object[name] : undefined;
}

/** One member of an interface, with its comment. */
function field(name: string, type: string, description?: string, isOptional = false): string {
  const key = /^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name);
  return `${comment(description)}${key}${isOptional ? "?" : ""}: ${type};`;
}

function comment(description: string | undefined): string {
  if (description === undefined || description === "") return "";
  const text = description.replaceAll("*/", "* /").replace(/\s*\n\s*/g, " ");
  return `/** ${text} */\n`;
}

function block(fields: readonly string[]): string {
  const lines = fields.join("\n").split("\n");
  return `{\n${lines.map((line) => `  ${line}`).join("\n")}\n}`;
}
