//! Compiles a schema's JSON. Takes time proportional to the schema: each subschema is read once, however
//! many references lead to it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::iter;

use regex::RegexBuilder;
use serde_json::{Map, Number, Value};

use crate::json_type::JsonType;
use crate::number;
use crate::schema::{Contains, Id, Keyword, Node, Pattern, Schema, Types, Unevaluated};
use crate::text::{quote, quote_text};

/// Maximum bytes of a compiled pattern, and the steps charged for each byte of text. In the worst case each byte
/// is compared with each state of the automaton, and a state takes some thirty bytes.
const PATTERN_SIZES: [(usize, usize); 3] = [(4 << 10, 8), (32 << 10, 64), (256 << 10, 512)];

/// Maximum bytes of all compiled patterns of a schema: compiling takes time too.
const PATTERNS_BYTES: usize = 1 << 20;

/// Lookahead and lookbehind. They need a search that can take exponential time.
const LOOKAROUND: [&str; 4] = ["(?=", "(?!", "(?<=", "(?<!"];

/// The version of JSON Schema, as far as the versions differ here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Draft {
    Four,
    Six,
    Seven,
    Of2019,
    Of2020,
}

pub(crate) fn compile(root: &Value) -> Result<Schema, String> {
    let draft = detect_draft(root)?;
    let ids = HashMap::new();
    let nodes = Vec::new();
    let todo = VecDeque::new();
    let room = PATTERNS_BYTES;
    let anchors = None;
    let mut compiler = Compiler { root, draft, ids, nodes, todo, room, anchors };
    compiler.node_id(root);
    while let Some((id, schema)) = compiler.todo.pop_front() {
        compiler.nodes[id] = compiler.compile_node(schema)?;
    }
    Ok(Schema { nodes: compiler.nodes })
}

fn detect_draft(root: &Value) -> Result<Draft, String> {
    let Some(schema) = root.get("$schema") else { return Ok(Draft::Of2020) };
    let text = schema.as_str().unwrap_or_default();
    let known = [
        ("json-schema.org/draft-04/schema", Draft::Four),
        ("json-schema.org/draft-06/schema", Draft::Six),
        ("json-schema.org/draft-07/schema", Draft::Seven),
        ("json-schema.org/draft/2019-09/schema", Draft::Of2019),
        ("json-schema.org/draft/2020-12/schema", Draft::Of2020),
    ];
    match known.into_iter().find(|(name, _)| text.contains(name)) {
        Some((_, draft)) => Ok(draft),
        None => Err(format!("unknown $schema {}", quote(schema))),
    }
}

struct Compiler<'a> {
    root: &'a Value,
    draft: Draft,
    /// Visited subschemas by address.
    ids: HashMap<*const Value, Id>,
    nodes: Vec<Node>,
    /// Subschemas not read yet: no recursion, however long a chain of references is.
    todo: VecDeque<(Id, &'a Value)>,
    /// Bytes left for patterns.
    room: usize,
    /// Named subschemas, collected on first use. All are collected at once: a separate search for each reference
    /// would take time proportional to the schema.
    anchors: Option<HashMap<String, &'a Value>>,
}

type Compiled<T> = Result<T, String>;

impl<'a> Compiler<'a> {
    /// The node index of a subschema.
    fn node_id(&mut self, schema: &'a Value) -> Id {
        *self.ids.entry(std::ptr::from_ref(schema)).or_insert_with(|| {
            let id = self.nodes.len();
            self.nodes.push(Node::default());
            self.todo.push_back((id, schema));
            id
        })
    }

    fn compile_node(&mut self, schema: &'a Value) -> Compiled<Node> {
        let mut node = Node::default();
        let members = match schema {
            Value::Bool(true) => return Ok(node),
            Value::Bool(false) => {
                node.keywords.push(Keyword::False);
                return Ok(node);
            }
            Value::Object(members) => members,
            other => return Err(format!("{} is not a schema", quote(other))),
        };
        // References inside it would be relative to it, not to the whole document.
        let id = members.get("$id").and_then(Value::as_str);
        if !std::ptr::eq(schema, self.root) && id.is_some_and(|id| !id.starts_with('#')) {
            return Err("$id in a subschema is not supported".to_owned());
        }
        let keywords = &mut node.keywords;
        self.compile_references(members, keywords)?;
        if self.draft <= Draft::Seven && !keywords.is_empty() {
            // The siblings of a reference are ignored.
            return Ok(node);
        }
        self.compile_any_value(members, keywords)?;
        self.compile_numbers(members, keywords)?;
        self.compile_texts(members, keywords)?;
        self.compile_objects(members, keywords)?;
        self.compile_arrays(members, keywords)?;
        self.compile_combinations(members, keywords)?;
        if self.draft >= Draft::Of2019 {
            node.unevaluated = self.compile_unevaluated(members);
        }
        Ok(node)
    }

    /// The document has one base URI (a nested `$id` is refused), so a dynamic reference has only one target.
    fn compile_references(
        &mut self,
        members: &'a Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        let dynamic = match self.draft {
            Draft::Of2020 => Some("$dynamicRef"),
            Draft::Of2019 => Some("$recursiveRef"),
            _ => None,
        };
        for name in iter::once("$ref").chain(dynamic) {
            if let Some(target) = members.get(name) {
                let found = self.resolve(name, target)?;
                into.push(Keyword::Ref(self.node_id(found)));
            }
        }
        Ok(())
    }

    fn compile_unevaluated(&mut self, members: &'a Map<String, Value>) -> Option<Unevaluated> {
        let properties = members.get("unevaluatedProperties");
        let items = members.get("unevaluatedItems");
        if properties.is_none() && items.is_none() {
            return None;
        }
        Some(Unevaluated {
            constrains: properties.iter().chain(&items).any(|it| **it != Value::Bool(true)),
            properties: properties.map(|it| self.node_id(it)),
            items: items.map(|it| self.node_id(it)),
        })
    }

    fn resolve(&mut self, name: &str, target: &Value) -> Compiled<&'a Value> {
        let text = target.as_str().ok_or_else(|| unexpected_value(name, target, "a string"))?;
        self.find_reference(text).ok_or_else(|| format!("unknown reference {text:?}"))
    }

    /// Returns the subschema that a reference within the document leads to.
    fn find_reference(&mut self, reference: &str) -> Option<&'a Value> {
        let root = self.root;
        let id = root.get("$id").and_then(Value::as_str).unwrap_or_default().trim_end_matches('#');
        let fragment = reference
            .strip_prefix('#')
            .or_else(|| reference.strip_prefix(id)?.strip_prefix('#'))
            .and_then(percent_decode)?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return root.pointer(&fragment);
        }
        let anchors = self.anchors.get_or_insert_with(|| collect_anchors(root));
        anchors.get(&*fragment).copied()
    }

    fn compile_any_value(
        &mut self,
        members: &'a Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        if let Some(types) = members.get("type") {
            into.push(Keyword::Type(self.compile_types(types)?));
        }
        if let Some(values) = members.get("enum") {
            let values =
                values.as_array().ok_or_else(|| unexpected_value("enum", values, "an array"))?;
            into.push(Keyword::Enum(values.clone()));
        }
        if let (Some(value), true) = (members.get("const"), self.draft >= Draft::Six) {
            into.push(Keyword::Const(value.clone()));
        }
        Ok(())
    }

    fn compile_types(&self, value: &Value) -> Compiled<Types> {
        let accepted = match value {
            Value::Array(names) if !names.is_empty() => {
                names.iter().map(read_type).collect::<Compiled<Vec<_>>>()?
            }
            name => vec![read_type(name)?],
        };
        Ok(Types { accepted, by_notation: self.draft == Draft::Four })
    }

    fn compile_numbers(
        &mut self,
        members: &Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        let minimum = read_number(members, "minimum")?;
        let maximum = read_number(members, "maximum")?;
        if self.draft == Draft::Four {
            // Here the exclusive keywords are flags of the inclusive ones.
            into.extend(minimum.map(if is_true(members, "exclusiveMinimum") {
                Keyword::ExclusiveMinimum
            } else {
                Keyword::Minimum
            }));
            into.extend(maximum.map(if is_true(members, "exclusiveMaximum") {
                Keyword::ExclusiveMaximum
            } else {
                Keyword::Maximum
            }));
        } else {
            into.extend(minimum.map(Keyword::Minimum));
            into.extend(maximum.map(Keyword::Maximum));
            into.extend(read_number(members, "exclusiveMinimum")?.map(Keyword::ExclusiveMinimum));
            into.extend(read_number(members, "exclusiveMaximum")?.map(Keyword::ExclusiveMaximum));
        }
        if let Some(divisor) = read_number(members, "multipleOf")? {
            if number::compare(&divisor, &Number::from(0)).is_le() {
                return Err(format!("multipleOf must be greater than 0, not {divisor}"));
            }
            into.push(Keyword::MultipleOf(divisor));
        }
        Ok(())
    }

    fn compile_texts(
        &mut self,
        members: &Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        into.extend(read_count(members, "minLength")?.map(Keyword::MinLength));
        into.extend(read_count(members, "maxLength")?.map(Keyword::MaxLength));
        if let Some(source) = members.get("pattern") {
            let text =
                source.as_str().ok_or_else(|| unexpected_value("pattern", source, "a string"))?;
            into.push(Keyword::Pattern(self.compile_pattern(text)?));
        }
        Ok(())
    }

    fn compile_pattern(&mut self, source: &str) -> Compiled<Pattern> {
        let translated =
            jsonschema_regex::to_rust_regex(source).map_err(|()| unsupported_pattern(source))?;
        for (bytes, steps_per_byte) in PATTERN_SIZES {
            if bytes > self.room {
                break;
            }
            match RegexBuilder::new(&translated).size_limit(bytes).build() {
                Ok(regex) => {
                    self.room -= bytes;
                    return Ok(Pattern { source: source.to_owned(), regex, steps_per_byte });
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(_) => return Err(unsupported_pattern(source)),
            }
        }
        Err(format!("the patterns up to {} are too large", quote_text(source)))
    }

    fn compile_objects(
        &mut self,
        members: &'a Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        into.extend(read_count(members, "minProperties")?.map(Keyword::MinProperties));
        into.extend(read_count(members, "maxProperties")?.map(Keyword::MaxProperties));
        if let Some(required) = members.get("required") {
            into.push(Keyword::Required(read_names("required", required)?));
        }
        let properties = self.compile_by_name(members, "properties")?;
        let mut patterns = Vec::new();
        for (source, id) in self.compile_by_name(members, "patternProperties")? {
            patterns.push((self.compile_pattern(&source)?, id));
        }
        let rest = members.get("additionalProperties").map(|rest| self.node_id(rest));
        if !properties.is_empty() || !patterns.is_empty() || rest.is_some() {
            into.push(Keyword::Properties { properties, patterns, rest });
        }
        if let (Some(schema), true) = (members.get("propertyNames"), self.draft >= Draft::Six) {
            into.push(Keyword::PropertyNames(self.node_id(schema)));
        }
        self.compile_dependencies(members, into)?;
        Ok(())
    }

    fn compile_dependencies(
        &mut self,
        members: &'a Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        let mut required = Vec::new();
        let mut schemas = Vec::new();
        // Later drafts keep it for compatibility.
        for (name, value) in read_object(members, "dependencies")? {
            match value {
                Value::Array(_) => required.push((name.clone(), read_names(name, value)?)),
                schema => schemas.push((name.clone(), self.node_id(schema))),
            }
        }
        if self.draft >= Draft::Of2019 {
            for (name, value) in read_object(members, "dependentRequired")? {
                required.push((name.clone(), read_names(name, value)?));
            }
            schemas.extend(self.compile_by_name(members, "dependentSchemas")?);
        }
        if !required.is_empty() {
            into.push(Keyword::DependentRequired(required));
        }
        if !schemas.is_empty() {
            into.push(Keyword::DependentSchemas(schemas));
        }
        Ok(())
    }

    fn compile_arrays(
        &mut self,
        members: &'a Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        into.extend(read_count(members, "minItems")?.map(Keyword::MinItems));
        into.extend(read_count(members, "maxItems")?.map(Keyword::MaxItems));
        if members.get("uniqueItems") == Some(&Value::Bool(true)) {
            into.push(Keyword::UniqueItems);
        }
        let (tuple, rest) = if self.draft == Draft::Of2020 {
            (members.get("prefixItems"), members.get("items"))
        } else {
            match members.get("items") {
                Some(tuple @ Value::Array(_)) => (Some(tuple), members.get("additionalItems")),
                items => (None, items),
            }
        };
        let prefix = tuple.map_or(Ok(Vec::new()), |tuple| self.compile_list("items", tuple))?;
        let rest = rest.map(|rest| self.node_id(rest));
        if !prefix.is_empty() || rest.is_some() {
            into.push(Keyword::Items { prefix, rest });
        }
        if let (Some(schema), true) = (members.get("contains"), self.draft >= Draft::Six) {
            let (min, max) = if self.draft >= Draft::Of2019 {
                (
                    read_count(members, "minContains")?.unwrap_or(1),
                    read_count(members, "maxContains")?,
                )
            } else {
                (1, None)
            };
            let marks_matches = self.draft == Draft::Of2020;
            let schema = self.node_id(schema);
            into.push(Keyword::Contains(Contains { schema, min, max, marks_matches }));
        }
        Ok(())
    }

    fn compile_combinations(
        &mut self,
        members: &'a Map<String, Value>,
        into: &mut Vec<Keyword>,
    ) -> Compiled<()> {
        for name in ["allOf", "anyOf", "oneOf"] {
            if let Some(list) = members.get(name) {
                let ids = self.compile_list(name, list)?;
                if ids.is_empty() {
                    return Err(unexpected_value(name, list, "an array of schemas"));
                }
                into.push(match name {
                    "allOf" => Keyword::AllOf(ids),
                    "anyOf" => Keyword::AnyOf(ids),
                    _ => Keyword::OneOf(ids),
                });
            }
        }
        if let Some(schema) = members.get("not") {
            into.push(Keyword::Not(self.node_id(schema)));
        }
        if let (Some(test), true) = (members.get("if"), self.draft >= Draft::Seven) {
            let test = self.node_id(test);
            let then = members.get("then").map(|then| self.node_id(then));
            let otherwise = members.get("else").map(|otherwise| self.node_id(otherwise));
            into.push(Keyword::If { test, then, otherwise });
        }
        Ok(())
    }

    fn compile_list(&mut self, name: &str, value: &'a Value) -> Compiled<Vec<Id>> {
        let list =
            value.as_array().ok_or_else(|| unexpected_value(name, value, "an array of schemas"))?;
        Ok(list.iter().map(|schema| self.node_id(schema)).collect())
    }

    fn compile_by_name(
        &mut self,
        members: &'a Map<String, Value>,
        name: &str,
    ) -> Compiled<BTreeMap<String, Id>> {
        let all = read_object(members, name)?;
        Ok(all.map(|(name, schema)| (name.clone(), self.node_id(schema))).collect())
    }
}

fn read_object<'a>(
    members: &'a Map<String, Value>,
    name: &str,
) -> Compiled<impl Iterator<Item = (&'a String, &'a Value)>> {
    let object = match members.get(name) {
        None => None,
        Some(Value::Object(object)) => Some(object),
        Some(other) => return Err(unexpected_value(name, other, "an object")),
    };
    Ok(object.into_iter().flatten())
}

fn read_type(name: &Value) -> Compiled<JsonType> {
    name.as_str()
        .and_then(JsonType::from_name)
        .ok_or_else(|| unexpected_value("type", name, "the name of a type"))
}

fn read_number(members: &Map<String, Value>, name: &str) -> Compiled<Option<Number>> {
    match members.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number.clone())),
        Some(other) => Err(unexpected_value(name, other, "a number")),
    }
}

fn is_true(members: &Map<String, Value>, name: &str) -> bool {
    members.get(name) == Some(&Value::Bool(true))
}

fn unsupported_pattern(source: &str) -> String {
    let quoted = quote_text(source);
    if LOOKAROUND.iter().any(|one| source.contains(one)) {
        format!("lookaround in the pattern {quoted} is not supported")
    } else {
        format!("the pattern {quoted} cannot be matched in linear time")
    }
}

fn read_names(name: &str, value: &Value) -> Compiled<Vec<String>> {
    let list =
        value.as_array().ok_or_else(|| unexpected_value(name, value, "an array of names"))?;
    list.iter()
        .map(|item| {
            item.as_str().map(str::to_owned).ok_or_else(|| unexpected_value(name, item, "a name"))
        })
        .collect()
}

fn read_count(members: &Map<String, Value>, name: &str) -> Compiled<Option<u64>> {
    let Some(value) = members.get(name) else { return Ok(None) };
    // 2.0 is a count too.
    let whole = value.as_f64().filter(|float| float.fract() == 0.0 && *float >= 0.0);
    let count = value.as_u64().or(whole.map(|float| float as u64));
    count.map(Some).ok_or_else(|| unexpected_value(name, value, "a count"))
}

fn unexpected_value(name: &str, value: &Value, expected: &str) -> String {
    format!("{name} must be {expected}, not {}", quote(value))
}

/// Percent-decodes the fragment of a reference.
fn percent_decode(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let high = char::from(rest.next()?).to_digit(16)?;
        let low = char::from(rest.next()?).to_digit(16)?;
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).ok()
}

/// Returns the subschemas with an anchor.
fn collect_anchors(root: &Value) -> HashMap<String, &Value> {
    let mut found = HashMap::new();
    let mut todo = vec![root];
    while let Some(value) = todo.pop() {
        match value {
            Value::Object(members) => {
                let anchor = members.get("$anchor").and_then(Value::as_str);
                let dynamic_anchor = members.get("$dynamicAnchor").and_then(Value::as_str);
                let id = members.get("$id").and_then(Value::as_str);
                let id_anchor = id.and_then(|id| id.strip_prefix('#'));
                for name in [anchor, dynamic_anchor, id_anchor].into_iter().flatten() {
                    found.entry(name.to_owned()).or_insert(value);
                }
                todo.extend(members.values());
            }
            Value::Array(items) => todo.extend(items),
            _ => {}
        }
    }
    found
}
