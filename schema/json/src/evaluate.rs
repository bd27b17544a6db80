//! The evaluation, which counts its steps.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use crate::number;
use crate::schema::{DEPTH, Failure, Id, Keyword, Pattern, Schema, Types};
use crate::text::quote;

/// Bytes of text processed in a step.
const BYTES_PER_STEP: usize = 16;

/// Maximum number of mismatches named in a list.
const NAMED: usize = 12;

/// The step budget is used up.
struct BudgetExhausted;

type EvaluationResult = Result<bool, BudgetExhausted>;

pub(crate) fn check(schema: &Schema, value: &Value, steps: u64) -> Result<(), Failure> {
    let mut evaluation = Evaluation::new(schema, steps);
    match evaluation.schema(0, value) {
        Err(BudgetExhausted) => Err(Failure::OverBudget),
        Ok(true) => Ok(()),
        Ok(false) => {
            let (path, what) = evaluation.misfit.unwrap_or_default();
            Err(Failure::Misfit { path, what })
        }
    }
}

pub(crate) fn cost(schema: &Schema, value: &Value, most: u64) -> Result<u64, Failure> {
    let mut evaluation = Evaluation { exhaustive: true, quiet: 1, ..Evaluation::new(schema, most) };
    match evaluation.schema(0, value) {
        Err(BudgetExhausted) => Err(Failure::OverBudget),
        Ok(_) => Ok(most - evaluation.left),
    }
}

enum Part<'v> {
    Name(&'v str),
    Item(usize),
}

struct Evaluation<'s, 'v> {
    schema: &'s Schema,
    left: u64,
    depth: usize,
    /// Continues after a mismatch.
    exhaustive: bool,
    /// Above zero while a mismatch does not decide the verdict by itself.
    quiet: usize,
    path: Vec<Part<'v>>,
    /// References being followed, each with its value.
    followed: Vec<(Id, *const Value)>,
    misfit: Option<(String, String)>,
}

impl<'s, 'v> Evaluation<'s, 'v> {
    fn new(schema: &'s Schema, left: u64) -> Self {
        let (path, followed, misfit) = (Vec::new(), Vec::new(), None);
        Evaluation { schema, left, depth: 0, exhaustive: false, quiet: 0, path, followed, misfit }
    }

    fn spend(&mut self, steps: usize) -> Result<(), BudgetExhausted> {
        self.left = self.left.checked_sub(steps as u64).ok_or(BudgetExhausted)?;
        Ok(())
    }

    fn schema(&mut self, id: Id, value: &'v Value) -> EvaluationResult {
        self.spend(1)?;
        if self.depth == DEPTH {
            return Err(BudgetExhausted);
        }
        self.depth += 1;
        let keywords = &self.schema.nodes[id];
        let fits = self.all(keywords.iter(), |this, keyword| this.keyword(keyword, value))?;
        self.depth -= 1;
        Ok(fits)
    }

    /// Whether all items hold; evaluates the rest after a mismatch only if exhaustive.
    fn all<T>(
        &mut self,
        of: impl Iterator<Item = T>,
        mut fits: impl FnMut(&mut Self, T) -> EvaluationResult,
    ) -> EvaluationResult {
        let mut all = true;
        for one in of {
            all &= fits(self, one)?;
            if !all && !self.exhaustive {
                return Ok(false);
            }
        }
        Ok(all)
    }

    /// Evaluates without recording an error.
    fn quietly(&mut self, id: Id, value: &'v Value) -> EvaluationResult {
        self.quiet += 1;
        let fits = self.schema(id, value)?;
        self.quiet -= 1;
        Ok(fits)
    }

    fn within(&mut self, part: Part<'v>, id: Id, value: &'v Value) -> EvaluationResult {
        self.path.push(part);
        let fits = self.schema(id, value)?;
        self.path.pop();
        Ok(fits)
    }

    /// Checks a condition; records the first error.
    fn hold(&mut self, holds: bool, what: impl FnOnce() -> String) -> EvaluationResult {
        if !holds && self.quiet == 0 && self.misfit.is_none() {
            let mut path = String::new();
            for part in &self.path {
                let written = match part {
                    Part::Name(name) => {
                        write!(path, "/{}", name.replace('~', "~0").replace('/', "~1"))
                    }
                    Part::Item(at) => write!(path, "/{at}"),
                };
                written.expect("a String takes everything");
            }
            self.misfit = Some((path, what()));
        }
        Ok(holds)
    }

    fn keyword(&mut self, keyword: &'s Keyword, value: &'v Value) -> EvaluationResult {
        match keyword {
            Keyword::False => {
                self.hold(false, || format!("False schema does not allow {}", quote(value)))
            }
            Keyword::Ref(target) => self.follow(*target, value),
            Keyword::Type(types) => self.types(types, value),
            Keyword::Enum(values) => self.one_of(values, value),
            Keyword::Const(wanted) => {
                let equal = self.equal(wanted, value)?;
                self.hold(equal, || format!("{} was expected", quote(wanted)))
            }
            Keyword::AllOf(ids) => self.all(ids.iter(), |this, id| this.schema(*id, value)),
            Keyword::AnyOf(ids) => self.any_of(ids, value),
            Keyword::OneOf(ids) => self.exactly_one_of(ids, value),
            Keyword::Not(id) => {
                let fits = self.quietly(*id, value)?;
                self.hold(!fits, || format!("{} is not allowed by \"not\"", quote(value)))
            }
            Keyword::If { test, then, otherwise } => {
                let chosen = if self.quietly(*test, value)? { then } else { otherwise };
                if self.exhaustive {
                    let both = then.iter().chain(otherwise);
                    return self.all(both, |this, id| this.schema(*id, value));
                }
                chosen.map_or(Ok(true), |id| self.schema(id, value))
            }
            keyword => match value {
                Value::Number(number) => self.number(keyword, number),
                Value::String(text) => self.text(keyword, text, value),
                Value::Array(items) => self.array(keyword, items, value),
                Value::Object(members) => self.object(keyword, members, value),
                Value::Null | Value::Bool(_) => Ok(true),
            },
        }
    }

    /// Follows a reference. One that returns to itself for the same value imposes no constraint.
    fn follow(&mut self, target: Id, value: &'v Value) -> EvaluationResult {
        let following = (target, std::ptr::from_ref(value));
        self.spend(self.followed.len() / 8)?;
        if self.followed.contains(&following) {
            return Ok(true);
        }
        self.followed.push(following);
        let fits = self.schema(target, value)?;
        self.followed.pop();
        Ok(fits)
    }

    fn types(&mut self, types: &Types, value: &Value) -> EvaluationResult {
        let is = |name: &&str| match *name {
            "integer" => match value {
                Value::Number(number) if types.by_notation => number::is_written_whole(number),
                Value::Number(number) => number::is_whole(number),
                _ => false,
            },
            name => name == type_of(value),
        };
        self.hold(types.names.iter().any(is), || {
            let names: Vec<String> = types.names.iter().map(|name| format!("{name:?}")).collect();
            let word = if names.len() == 1 { "type" } else { "types" };
            format!("{} is not of {word} {}", quote(value), names.join(", "))
        })
    }

    fn one_of(&mut self, values: &[Value], value: &Value) -> EvaluationResult {
        let mut found = false;
        for one in values {
            found |= self.equal(one, value)?;
            if found && !self.exhaustive {
                break;
            }
        }
        self.hold(found, || {
            let mut named: Vec<String> = values.iter().take(NAMED).map(quote).collect();
            if values.len() > NAMED {
                named.push(format!("{} more", values.len() - NAMED));
            }
            format!("{} is not one of {}", quote(value), named.join(", "))
        })
    }

    fn any_of(&mut self, ids: &[Id], value: &'v Value) -> EvaluationResult {
        let mut found = false;
        for id in ids {
            found |= self.quietly(*id, value)?;
            if found && !self.exhaustive {
                return Ok(true);
            }
        }
        self.hold(found, || format!("{} is valid under none of \"anyOf\"", quote(value)))
    }

    fn exactly_one_of(&mut self, ids: &[Id], value: &'v Value) -> EvaluationResult {
        let mut found = 0;
        for id in ids {
            found += usize::from(self.quietly(*id, value)?);
            if found > 1 && !self.exhaustive {
                break;
            }
        }
        self.hold(found == 1, || {
            let many = if found == 0 { "none" } else { "more than one" };
            format!("{} is valid under {many} of \"oneOf\"", quote(value))
        })
    }

    fn number(&mut self, keyword: &Keyword, number: &Number) -> EvaluationResult {
        let against = |limit| number::compare(number, limit);
        let (holds, what, limit) = match keyword {
            Keyword::Minimum(limit) => (against(limit).is_ge(), "less than the minimum of", limit),
            Keyword::Maximum(limit) => {
                (against(limit).is_le(), "greater than the maximum of", limit)
            }
            Keyword::ExclusiveMinimum(limit) => {
                (against(limit).is_gt(), "less than or equal to the minimum of", limit)
            }
            Keyword::ExclusiveMaximum(limit) => {
                (against(limit).is_lt(), "greater than or equal to the maximum of", limit)
            }
            Keyword::MultipleOf(of) => (number::is_multiple(number, of), "not a multiple of", of),
            _ => return Ok(true),
        };
        self.hold(holds, || format!("{number} is {what} {limit}"))
    }

    fn text(&mut self, keyword: &Keyword, text: &str, value: &Value) -> EvaluationResult {
        let (holds, what) = match keyword {
            Keyword::MinLength(least) => {
                self.spend(text.len() / BYTES_PER_STEP)?;
                (chars(text) >= *least, format!("is shorter than {least} characters"))
            }
            Keyword::MaxLength(most) => {
                self.spend(text.len() / BYTES_PER_STEP)?;
                (chars(text) <= *most, format!("is longer than {most} characters"))
            }
            Keyword::Pattern(pattern) => {
                let matches = self.matches(pattern, text)?;
                (matches, format!("does not match {:?}", pattern.source))
            }
            _ => return Ok(true),
        };
        self.hold(holds, || format!("{} {what}", quote(value)))
    }

    fn matches(&mut self, pattern: &Pattern, text: &str) -> EvaluationResult {
        let bytes = text.len();
        self.spend(1 + bytes / BYTES_PER_STEP + bytes.saturating_mul(pattern.steps_per_byte))?;
        Ok(pattern.regex.as_ref().is_none_or(|regex| regex.is_match(text)))
    }

    fn array(
        &mut self,
        keyword: &'s Keyword,
        items: &'v [Value],
        value: &Value,
    ) -> EvaluationResult {
        let count = items.len() as u64;
        match keyword {
            Keyword::MinItems(least) => self
                .hold(count >= *least, || format!("{} has less than {least} items", quote(value))),
            Keyword::MaxItems(most) => {
                self.hold(count <= *most, || format!("{} has more than {most} items", quote(value)))
            }
            Keyword::UniqueItems => {
                let unique = self.are_unique(items)?;
                self.hold(unique, || format!("{} has non-unique elements", quote(value)))
            }
            Keyword::Items { prefix, rest } => {
                let each = |at: usize| prefix.get(at).or(rest.as_ref());
                self.all(items.iter().enumerate(), |this, (at, item)| {
                    each(at).map_or(Ok(true), |id| this.within(Part::Item(at), *id, item))
                })
            }
            Keyword::Everywhere(id) => self.all(items.iter(), |this, item| this.schema(*id, item)),
            Keyword::Contains { schema, min, max } => {
                let mut found = 0;
                for item in items {
                    found += u64::from(self.quietly(*schema, item)?);
                    let decided = max.map_or(found >= *min, |max| found > max);
                    if decided && !self.exhaustive {
                        break;
                    }
                }
                let enough = found >= *min && max.is_none_or(|max| found <= max);
                self.hold(enough, || {
                    format!("{} has {found} items that match \"contains\"", quote(value))
                })
            }
            _ => Ok(true),
        }
    }

    fn are_unique(&mut self, items: &[Value]) -> EvaluationResult {
        let mut seen = BTreeSet::new();
        for item in items {
            let mut text = String::new();
            self.canonical(item, &mut text)?;
            if !seen.insert(text) && !self.exhaustive {
                return Ok(false);
            }
        }
        Ok(seen.len() == items.len())
    }

    fn object(
        &mut self,
        keyword: &'s Keyword,
        members: &'v Map<String, Value>,
        value: &'v Value,
    ) -> EvaluationResult {
        let count = members.len() as u64;
        match keyword {
            Keyword::MinProperties(least) => self.hold(count >= *least, || {
                format!("{} has less than {least} properties", quote(value))
            }),
            Keyword::MaxProperties(most) => self.hold(count <= *most, || {
                format!("{} has more than {most} properties", quote(value))
            }),
            Keyword::Required(names) => self.all(names.iter(), |this, name| {
                this.spend(1)?;
                this.hold(members.contains_key(name), || format!("{name:?} is a required property"))
            }),
            Keyword::Properties { .. } => self.properties(keyword, members),
            Keyword::Everywhere(id) => {
                self.all(members.values(), |this, member| this.schema(*id, member))
            }
            Keyword::PropertyNames(id) => self.names(*id, members),
            Keyword::DependentRequired(all) => self.all(all.iter(), |this, (name, wanted)| {
                this.spend(1)?;
                if !members.contains_key(name) {
                    return Ok(true);
                }
                this.all(wanted.iter(), |this, wanted| {
                    this.spend(1)?;
                    this.hold(members.contains_key(wanted), || {
                        format!("{wanted:?} is required if {name:?} is present")
                    })
                })
            }),
            Keyword::DependentSchemas(all) => self.all(all.iter(), |this, (name, id)| {
                this.spend(1)?;
                if members.contains_key(name) { this.schema(*id, value) } else { Ok(true) }
            }),
            _ => Ok(true),
        }
    }

    fn properties(
        &mut self,
        keyword: &'s Keyword,
        members: &'v Map<String, Value>,
    ) -> EvaluationResult {
        let Keyword::Properties { named, patterns, rest } = keyword else { return Ok(true) };
        self.all(members.iter(), |this, (name, member)| {
            this.spend(1)?;
            let (mut fits, mut known) = (true, false);
            if let Some(id) = named.get(name) {
                known = true;
                fits &= this.within(Part::Name(name), *id, member)?;
            }
            for (pattern, id) in patterns {
                if this.matches(pattern, name)? {
                    known = true;
                    fits &= this.within(Part::Name(name), *id, member)?;
                }
            }
            let (false, Some(rest)) = (known, rest) else { return Ok(fits) };
            if let [Keyword::False] = this.schema.nodes[*rest].as_slice() {
                return this.hold(false, || {
                    format!("Additional properties are not allowed ('{name}' was unexpected)")
                });
            }
            this.within(Part::Name(name), *rest, member)
        })
    }

    /// Checks member names against a schema. They are not part of the value, so they get their own scope.
    fn names(&mut self, id: Id, members: &Map<String, Value>) -> EvaluationResult {
        self.all(members.keys(), |this, name| {
            this.spend(1 + name.len() / BYTES_PER_STEP)?;
            let name = Value::String(name.clone());
            let mut inner = Evaluation {
                depth: this.depth,
                exhaustive: this.exhaustive,
                quiet: 1,
                ..Evaluation::new(this.schema, this.left)
            };
            let fits = inner.schema(id, &name);
            this.left = inner.left;
            let fits = fits?;
            this.hold(fits, || format!("{} is not an allowed property name", quote(&name)))
        })
    }

    /// Whether two values are equal as JSON Schema defines it.
    fn equal(&mut self, a: &Value, b: &Value) -> EvaluationResult {
        self.spend(1)?;
        match (a, b) {
            (Value::Number(a), Value::Number(b)) => Ok(number::compare(a, b) == Ordering::Equal),
            (Value::String(a), Value::String(b)) => {
                self.spend(a.len().min(b.len()) / BYTES_PER_STEP)?;
                Ok(a == b)
            }
            (Value::Array(a), Value::Array(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b) {
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (Value::Object(a), Value::Object(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (name, a) in a {
                    self.spend(1 + name.len() / BYTES_PER_STEP)?;
                    let Some(b) = b.get(name) else { return Ok(false) };
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (a, b) => Ok(a == b),
        }
    }

    /// Writes a text that is the same for equal values.
    fn canonical(&mut self, value: &Value, into: &mut String) -> Result<(), BudgetExhausted> {
        self.spend(1)?;
        match value {
            Value::Number(number) => into.push_str(&number::canonical(number)),
            Value::Array(items) => {
                into.push('[');
                for item in items {
                    self.canonical(item, into)?;
                    into.push(',');
                }
                into.push(']');
            }
            Value::Object(members) => {
                into.push('{');
                let mut names: Vec<&String> = members.keys().collect();
                names.sort_unstable();
                for name in names {
                    self.quoted(name, into)?;
                    into.push(':');
                    self.canonical(&members[name], into)?;
                    into.push(',');
                }
                into.push('}');
            }
            Value::String(text) => self.quoted(text, into)?,
            Value::Null | Value::Bool(_) => into.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn quoted(&mut self, text: &str, into: &mut String) -> Result<(), BudgetExhausted> {
        self.spend(1 + text.len() / BYTES_PER_STEP)?;
        write!(into, "{text:?}").expect("a String takes everything");
        Ok(())
    }
}

fn chars(text: &str) -> u64 {
    text.chars().count() as u64
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
