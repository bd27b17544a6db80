//! Validates arguments against a tool's JSON Schema.
//!
//! A schema is untrusted data. It is limited when it is registered: in bytes, depth, patterns, and in
//! size with its references expanded. Each evaluation counts its steps and stops when the budget is used up
//! ([`limits::TOOL_SCHEMA_STEPS`]): a recursive schema with several branches takes exponential time on suitably
//! nested arguments. The verdict depends on schema and arguments alone, so a replay decides the same.
//!
//! Both checks are [`Work`]: the writer compiles small schemas and evaluates few steps, and readers do larger work
//! before the call runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use abide_json_schema::{Failure, Schema};
use abide_schema::work::{Verdict, WHOLE, Work};
use abide_schema::{Abort, Code, Context, Json, Refusal, limits};
use serde_json::Value as JsonValue;

/// Cached compiled schemas: a tool is called more often than registered.
const KEPT: usize = 256;

/// Maximum nesting of references.
const NESTED_REFERENCES: usize = 64;

/// Maximum length of a mismatch description.
const WHY_CHARS: usize = 300;

/// Keyed by the schema's text. The cache affects only speed.
static COMPILED: Mutex<BTreeMap<String, Arc<Schema>>> = Mutex::new(BTreeMap::new());

/// Checks that a tool's schema is supported.
pub(crate) fn check_schema(ctx: &mut Context<'_>, tool: &str, schema: &Json) -> Result<(), Abort> {
    ctx.settle(&Registration { tool: tool.to_owned(), schema: schema.clone() })
}

/// Checks a call's arguments against the schema of a version of a tool.
pub(crate) fn check(
    ctx: &mut Context<'_>,
    (tool, version): (&str, i64),
    schema: &Json,
    arguments: &Arc<JsonValue>,
) -> Result<(), Abort> {
    let tool = tool.to_owned();
    let schema = schema.clone();
    let arguments = Arc::clone(arguments);
    ctx.settle(&Validation { tool, version, schema, arguments })
}

/// The check of a schema at registration.
#[derive(Clone, Debug, PartialEq)]
struct Registration {
    tool: String,
    schema: Json,
}

impl Work for Registration {
    fn attempt(&self, steps: u64) -> Option<Verdict> {
        let Registration { tool, schema } = self;
        (steps == WHOLE || is_small(schema)).then(|| acceptable(tool, schema))
    }
}

/// The check of a call's arguments.
#[derive(Clone, Debug, PartialEq)]
struct Validation {
    tool: String,
    version: i64,
    schema: Json,
    arguments: Arc<JsonValue>,
}

impl Work for Validation {
    fn attempt(&self, steps: u64) -> Option<Verdict> {
        let Validation { tool, schema, arguments, .. } = self;
        let schema = match known(schema) {
            Some(schema) => schema,
            None if steps < WHOLE && !is_small(schema) => return None,
            None => match compiled(schema) {
                Ok(schema) => schema,
                Err(why) => {
                    let detail = format!("invalid input_schema of {tool}: {why}");
                    return Some(Err(Refusal::new(Code::Internal, detail)));
                }
            },
        };
        let max = limits::TOOL_SCHEMA_STEPS;
        match schema.check(arguments, steps.min(max)) {
            Ok(()) => Some(Ok(())),
            Err(Failure::Mismatch { path, what }) => Some(Err(self.mismatch(&path, &what))),
            // It may also exceed the depth limit, and then fails with any budget.
            Err(Failure::OverBudget) if steps < max => None,
            Err(Failure::OverBudget) => {
                let detail =
                    format!("validating the arguments of {tool} takes more than {max} steps");
                Some(Err(Refusal::new(Code::LimitExceeded, detail)
                    .hint("send smaller arguments, or register a schema with fewer alternatives")))
            }
        }
    }
}

impl Validation {
    fn mismatch(&self, path: &str, what: &str) -> Refusal {
        let Validation { tool, version, .. } = self;
        let place = if path.is_empty() { String::new() } else { format!("at {path}: ") };
        let why: String = what.chars().take(WHY_CHARS).collect();
        let detail = format!("the arguments do not fit {tool}: {place}{why}");
        let hint = format!(
            "see `abide sql \"SELECT json_extract(manifest, '$.input_schema') FROM tool_versions \
             WHERE name = '{tool}' AND version = {version}\"`"
        );
        Refusal::new(Code::BadArguments, detail).hint(hint)
    }
}

/// Whether a schema is so small that compiling it takes less time than the rest of a call.
fn is_small(schema: &Json) -> bool {
    let text = schema.as_str();
    text.len() <= limits::WRITER_SCHEMA_BYTES && !text.contains("\"pattern")
}

fn acceptable(tool: &str, schema: &Json) -> Result<(), Refusal> {
    let bytes = schema.as_str().len();
    let max = limits::TOOL_SCHEMA_BYTES;
    if bytes > max {
        let detail = format!("the input_schema of {tool} has {bytes} bytes; the limit is {max}");
        let hint = "shorten descriptions, or register several tools";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
    }
    let max = limits::TOOL_SCHEMA_DEPTH;
    if depth(schema.as_str()) > max {
        let detail = format!("the input_schema of {tool} is nested more than {max} levels deep");
        let hint = "move nested schemas to $defs and refer to them with #/$defs/…";
        return Err(Refusal::new(Code::LimitExceeded, detail).hint(hint));
    }
    let root = schema.value();
    SchemaWalk::over(&root).see(&root).and_then(|()| compiled(schema).map(drop)).map_err(|why| {
        let detail = format!("unsupported input_schema of {tool}: {why}");
        Refusal::new(Code::BadArguments, detail).hint(
            "JSON Schema 2020-12 is supported; references must stay within the schema: #/$defs/…",
        )
    })
}

/// Nesting depth of the arrays and objects of a JSON text. Does not recurse.
fn depth(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    let mut in_string = false;
    let mut escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn known(schema: &Json) -> Option<Arc<Schema>> {
    let kept = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    kept.get(schema.as_str()).cloned()
}

fn compiled(schema: &Json) -> Result<Arc<Schema>, String> {
    if let Some(known) = known(schema) {
        return Ok(known);
    }
    let fresh = Arc::new(Schema::compile(&schema.value())?);
    let mut kept = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(schema.as_str().to_owned(), Arc::clone(&fresh));
    Ok(fresh)
}

/// A walk over a schema with its references expanded.
struct SchemaWalk<'a> {
    root: &'a JsonValue,
    /// The references on the current path.
    within: Vec<&'a str>,
    /// Remaining number of subschemas.
    left: usize,
}

impl<'a> SchemaWalk<'a> {
    fn over(root: &'a JsonValue) -> SchemaWalk<'a> {
        SchemaWalk { root, within: Vec::new(), left: limits::TOOL_SCHEMA_NODES }
    }

    /// # Errors
    /// A description of the problem in the schema.
    fn see(&mut self, schema: &'a JsonValue) -> Result<(), String> {
        let Some(left) = self.left.checked_sub(1) else {
            let max = limits::TOOL_SCHEMA_NODES;
            return Err(format!("with its references expanded it has more than {max} subschemas"));
        };
        self.left = left;
        match schema {
            JsonValue::Array(items) => items.iter().try_for_each(|item| self.see(item)),
            JsonValue::Object(members) => {
                members.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
                    ("$ref", JsonValue::String(target)) => self.follow(target),
                    ("$dynamicRef" | "$recursiveRef", JsonValue::String(_)) => {
                        Err(format!("it has a {name}"))
                    }
                    // Definitions cost nothing until they are referenced.
                    ("$defs" | "definitions", _) => Ok(()),
                    _ => self.see(value),
                })
            }
            _ => Ok(()),
        }
    }

    /// Follows a reference, unless it leads back to the current path.
    fn follow(&mut self, target: &'a str) -> Result<(), String> {
        if self.within.contains(&target) {
            return Ok(());
        }
        let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
        let found =
            found.ok_or_else(|| format!("it refers to {target:?}, which does not exist in it"))?;
        if self.within.len() == NESTED_REFERENCES {
            return Err(format!("references are nested more than {NESTED_REFERENCES} deep"));
        }
        self.within.push(target);
        self.see(found)?;
        self.within.pop();
        Ok(())
    }
}
