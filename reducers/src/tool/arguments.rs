//! Validates the arguments of a call against its tool's JSON Schema, and the answer to a question against its form.
//!
//! A schema is untrusted data. It is limited when it is registered: in bytes, depth, patterns, and in
//! size with its references expanded. Each evaluation counts its steps and stops when the budget is used up
//! ([`limits::TOOL_SCHEMA_STEPS`]): a recursive schema with several branches takes exponential time on suitably
//! nested arguments. The verdict depends on schema and arguments alone, so a replay decides the same.
//!
//! Both checks are [`Work`]: the writer compiles small schemas and evaluates few steps, and readers do larger work
//! before the call runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use abide_json_schema::{Failure, Schema};
use abide_schema::work::{Verdict, WHOLE, Work};
use abide_schema::{Abort, Code, Context, Json, Refusal, limits};
use serde_json::Value as JsonValue;

/// Maximum number of compiled schemas in the cache: a tool is called more often than registered.
const CACHED_SCHEMAS: usize = 256;

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

/// What a validated value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subject {
    /// The arguments of a call of a tool, in a version.
    Arguments { tool: String, version: i64 },
    /// The answer to the question that a call stands for.
    Answer { call_id: String },
}

/// Checks a value against a schema.
pub(crate) fn check(
    ctx: &mut Context<'_>,
    subject: Subject,
    schema: &Json,
    value: &Arc<JsonValue>,
) -> Result<(), Abort> {
    let schema = schema.clone();
    let value = Arc::clone(value);
    ctx.settle(&Validation { subject, schema, value })
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
        (steps == WHOLE || is_small(schema)).then(|| check_supported(tool, schema))
    }
}

/// The check of a value.
#[derive(Clone, Debug, PartialEq)]
struct Validation {
    subject: Subject,
    schema: Json,
    value: Arc<JsonValue>,
}

impl Work for Validation {
    fn attempt(&self, steps: u64) -> Option<Verdict> {
        let Validation { subject, schema, value } = self;
        let schema = match find_compiled(schema) {
            Some(schema) => schema,
            None if steps < WHOLE && !is_small(schema) => return None,
            None => match compile(schema) {
                Ok(schema) => schema,
                Err(why) => {
                    let detail = format!("invalid schema of the {subject}: {why}");
                    return Some(Err(Refusal::new(Code::Internal, detail)));
                }
            },
        };
        let max = limits::TOOL_SCHEMA_STEPS;
        match schema.check(value, steps.min(max)) {
            Ok(()) => Some(Ok(())),
            Err(Failure::Mismatch { path, what }) => Some(Err(subject.mismatch(&path, &what))),
            // It may also exceed the depth limit, and then fails with any budget.
            Err(Failure::OverBudget) if steps < max => None,
            Err(Failure::OverBudget) => {
                let detail = format!("validating the {subject} takes more than {max} steps");
                let hint = "send a smaller value, or register a schema with fewer alternatives";
                Some(Err(Refusal::new(Code::LimitExceeded, detail).hint(hint)))
            }
        }
    }
}

impl Subject {
    fn mismatch(&self, path: &str, what: &str) -> Refusal {
        let place = if path.is_empty() { String::new() } else { format!("at {path}: ") };
        let why: String = what.chars().take(WHY_CHARS).collect();
        let detail = format!("invalid {self}: {place}{why}");
        let hint = match self {
            Subject::Arguments { tool, version } => format!(
                "see `abide sql \"SELECT json_extract(manifest, '$.input_schema') FROM tool_versions \
                 WHERE name = '{tool}' AND version = {version}\"`"
            ),
            Subject::Answer { call_id } => format!(
                "approve with `approved_arguments='{{\"answer\": {{…}}}}'` that fits the schema in \
                 the arguments of {call_id}"
            ),
        };
        Refusal::new(Code::BadArguments, detail).hint(hint)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Arguments { tool, .. } => write!(f, "arguments for {tool}"),
            Subject::Answer { .. } => f.write_str("answer"),
        }
    }
}

/// Returns `true` if a schema is so small that compiling it takes less time than the rest of a call.
fn is_small(schema: &Json) -> bool {
    let text = schema.as_str();
    text.len() <= limits::WRITER_SCHEMA_BYTES && !text.contains("\"pattern")
}

fn check_supported(tool: &str, schema: &Json) -> Result<(), Refusal> {
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
    SchemaWalk::new(&root).visit(&root).and_then(|()| compile(schema).map(drop)).map_err(|why| {
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

fn find_compiled(schema: &Json) -> Option<Arc<Schema>> {
    let cache = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    cache.get(schema.as_str()).cloned()
}

fn compile(schema: &Json) -> Result<Arc<Schema>, String> {
    if let Some(compiled) = find_compiled(schema) {
        return Ok(compiled);
    }
    let fresh = Arc::new(Schema::compile(&schema.value())?);
    let mut cache = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if cache.len() >= CACHED_SCHEMAS {
        cache.clear();
    }
    cache.insert(schema.as_str().to_owned(), Arc::clone(&fresh));
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
    fn new(root: &'a JsonValue) -> SchemaWalk<'a> {
        SchemaWalk { root, within: Vec::new(), left: limits::TOOL_SCHEMA_NODES }
    }

    /// # Errors
    /// A description of the problem in the schema.
    fn visit(&mut self, schema: &'a JsonValue) -> Result<(), String> {
        let Some(left) = self.left.checked_sub(1) else {
            let max = limits::TOOL_SCHEMA_NODES;
            return Err(format!("more than {max} subschemas with all references expanded"));
        };
        self.left = left;
        match schema {
            JsonValue::Array(items) => items.iter().try_for_each(|item| self.visit(item)),
            JsonValue::Object(members) => {
                members.iter().try_for_each(|(name, value)| match (name.as_str(), value) {
                    ("$ref", JsonValue::String(target)) => self.follow(target),
                    ("$dynamicRef" | "$recursiveRef", JsonValue::String(_)) => {
                        Err(format!("{name} is not supported"))
                    }
                    // Definitions cost nothing until they are referenced.
                    ("$defs" | "definitions", _) => Ok(()),
                    _ => self.visit(value),
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
        let found = target
            .strip_prefix('#')
            .and_then(|path| self.root.pointer(path))
            .ok_or_else(|| format!("unknown reference {target:?}"))?;
        if self.within.len() == NESTED_REFERENCES {
            return Err(format!("references are nested more than {NESTED_REFERENCES} deep"));
        }
        self.within.push(target);
        self.visit(found)?;
        self.within.pop();
        Ok(())
    }
}
