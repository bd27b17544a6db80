//! Arguments held to a tool's JSON Schema.
//!
//! A schema is data of a stranger that runs on the writer's thread. It is bounded when it is registered: in bytes, in
//! patterns, and in what it comes to with its references written out. Each evaluation counts its steps and ends when
//! they are used up ([`limits::TOOL_SCHEMA_STEPS`]): a recursive schema with several ways down takes exponential time on
//! arguments that are nested for the purpose. The verdict follows from schema and arguments alone, so a replay decides
//! alike.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use abide_json_schema::{Failure, Schema};
use abide_schema::{Code, Json, Refusal, limits};
use serde_json::Value as JsonValue;

use super::Tool;

/// Schemas that are kept compiled: a tool is called more often than registered.
const KEPT: usize = 256;

/// How deep references may lead into references.
const NESTED_REFERENCES: usize = 64;

/// How much is told of why arguments do not fit.
const WHY_CHARS: usize = 300;

type Compiled = BTreeMap<String, Rc<Schema>>;

thread_local! {
    /// By the schema's text: compiling one has no other effect than taking time.
    static COMPILED: RefCell<Compiled> = const { RefCell::new(Compiled::new()) };
}

/// Whether a tool's schema can be held to at all.
pub(crate) fn check_schema(tool: &str, schema: &Json) -> Result<(), Refusal> {
    let (bytes, most) = (schema.as_str().len(), limits::TOOL_SCHEMA_BYTES);
    if bytes > most {
        let detail =
            format!("the input_schema of {tool} has {bytes} bytes, at most {most} are taken");
        return Err(Refusal::new(Code::LimitExceeded, detail));
    }
    let root = schema.value();
    Walk::over(&root).see(&root).and_then(|()| compiled(schema).map(drop)).map_err(|why| {
        let detail = format!("the input_schema of {tool} cannot be held to: {why}");
        Refusal::new(Code::BadArguments, detail)
            .hint("JSON Schema 2020-12 is understood, with references to places in it: #/$defs/…")
    })
}

/// Whether a call's arguments fit the tool.
pub(crate) fn check(tool: &Tool, arguments: &JsonValue) -> Result<(), Refusal> {
    let Some(schema) = &tool.input_schema else { return Ok(()) };
    let name = &tool.name;
    let schema = compiled(schema).map_err(|why| {
        Refusal::new(Code::Internal, format!("the input_schema of {name} is not understood: {why}"))
    })?;
    let (path, what) = match schema.check(arguments, limits::TOOL_SCHEMA_STEPS) {
        Ok(()) => return Ok(()),
        Err(Failure::Misfit { path, what }) => (path, what),
        Err(Failure::OverBudget) => {
            let most = limits::TOOL_SCHEMA_STEPS;
            let detail = format!("it takes over {most} steps to hold the arguments to {name}");
            return Err(Refusal::new(Code::LimitExceeded, detail)
                .hint("send less, or register a schema with fewer alternatives"));
        }
    };
    let place = if path.is_empty() { String::new() } else { format!("at {path}: ") };
    let why: String = what.chars().take(WHY_CHARS).collect();
    let detail = format!("the arguments do not fit {name}: {place}{why}");
    let hint = format!(
        "see  abide sql \"SELECT json_extract(manifest, '$.input_schema') FROM tool_versions \
         WHERE name = '{name}' AND version = {}\"",
        tool.version
    );
    Err(Refusal::new(Code::BadArguments, detail).hint(hint))
}

fn compiled(schema: &Json) -> Result<Rc<Schema>, String> {
    let kept = COMPILED.with_borrow(|compiled| compiled.get(schema.as_str()).cloned());
    if let Some(schema) = kept {
        return Ok(schema);
    }
    let fresh = Rc::new(Schema::compile(&schema.value())?);
    COMPILED.with_borrow_mut(|compiled| {
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        compiled.insert(schema.as_str().to_owned(), Rc::clone(&fresh));
    });
    Ok(fresh)
}

/// A walk over a schema as if its references were written out.
struct Walk<'a> {
    root: &'a JsonValue,
    /// The references that led to where it stands.
    within: Vec<&'a str>,
    /// Subschemas that it may still see.
    left: usize,
}

impl<'a> Walk<'a> {
    fn over(root: &'a JsonValue) -> Walk<'a> {
        Walk { root, within: Vec::new(), left: limits::TOOL_SCHEMA_NODES }
    }

    /// # Errors
    /// What is wrong with the schema.
    fn see(&mut self, schema: &'a JsonValue) -> Result<(), String> {
        let Some(left) = self.left.checked_sub(1) else {
            let most = limits::TOOL_SCHEMA_NODES;
            return Err(format!("with its references written out it has over {most} subschemas"));
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
                    // Definitions cost nothing until something refers to them.
                    ("$defs" | "definitions", _) => Ok(()),
                    _ => self.see(value),
                })
            }
            _ => Ok(()),
        }
    }

    /// Goes where a reference leads, unless it leads back to where the walk stands.
    fn follow(&mut self, target: &'a str) -> Result<(), String> {
        if self.within.contains(&target) {
            return Ok(());
        }
        let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
        let found = found.ok_or_else(|| format!("it refers to {target:?}, which is not in it"))?;
        if self.within.len() == NESTED_REFERENCES {
            return Err(format!("references are nested more than {NESTED_REFERENCES} deep"));
        }
        self.within.push(target);
        self.see(found)?;
        self.within.pop();
        Ok(())
    }
}
