//! The evaluation, which counts its steps.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::mem;

use serde_json::{Map, Number, Value};

use crate::equality::{are_equal, are_unique};
use crate::mismatch::{BudgetExhausted, Failure, Mismatch, MismatchKind};
use crate::number::{compare, is_multiple};
use crate::schema::{Contains, DEPTH, Id, Keyword, Pattern, Schema, Types, Unevaluated};
use crate::text::{join_first, quote, quote_all, quote_name, quote_text};

/// Bytes of text that are processed in a step.
pub(crate) const BYTES_PER_STEP: usize = 16;

/// The steps that are left for an evaluation.
pub(crate) struct Budget {
    pub(crate) left: u64,
}

impl Budget {
    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), BudgetExhausted> {
        self.left = self.left.checked_sub(steps as u64).ok_or(BudgetExhausted)?;
        Ok(())
    }
}

type EvaluationResult = Result<bool, BudgetExhausted>;

pub(crate) fn check(schema: &Schema, value: &Value, steps: u64) -> Result<(), Failure> {
    let mut evaluation = Evaluation::new(schema, steps);
    match evaluation.evaluate_node(0, value) {
        Err(BudgetExhausted) => Err(Failure::OverBudget),
        Ok(true) => Ok(()),
        Ok(false) => {
            let first = evaluation.mismatches.into_iter().next();
            let (path, what) = first.map(|it| (it.path, it.what)).unwrap_or_default();
            Err(Failure::Mismatch { path, what })
        }
    }
}

pub(crate) fn mismatches(
    schema: &Schema,
    value: &Value,
    steps: u64,
    most: usize,
) -> Result<Vec<Mismatch>, BudgetExhausted> {
    let mut evaluation = Evaluation::new(schema, steps);
    evaluation.collects = true;
    evaluation.room = most.max(1);
    evaluation.evaluate_node(0, value)?;
    Ok(evaluation.mismatches)
}

enum Part<'v> {
    Name(&'v str),
    Item(usize),
}

struct Evaluation<'s, 'v> {
    schema: &'s Schema,
    budget: Budget,
    depth: usize,
    /// Collects mismatches instead of the first one.
    collects: bool,
    /// Above zero while a mismatch does not decide the verdict by itself.
    quiet: usize,
    path: Vec<Part<'v>>,
    /// References being followed, each with its value.
    followed: Vec<(Id, *const Value)>,
    mismatches: Vec<Mismatch>,
    /// How many more mismatches can be recorded.
    room: usize,
    /// The positions of the members or items of the current value to which a keyword applied. `None` unless a
    /// schema of this value has `unevaluatedProperties` or `unevaluatedItems`.
    evaluated: Option<BTreeSet<usize>>,
}

impl<'s, 'v> Evaluation<'s, 'v> {
    /// An evaluation that records one mismatch.
    fn new(schema: &'s Schema, steps: u64) -> Self {
        Evaluation {
            schema,
            budget: Budget { left: steps },
            depth: 0,
            collects: false,
            quiet: 0,
            path: Vec::new(),
            followed: Vec::new(),
            mismatches: Vec::new(),
            room: 1,
            evaluated: None,
        }
    }

    fn evaluate_node(&mut self, id: Id, value: &'v Value) -> EvaluationResult {
        self.budget.spend(1)?;
        if self.depth == DEPTH {
            return Err(BudgetExhausted);
        }
        self.depth += 1;
        let node = &self.schema.nodes[id];
        let constrained = node.unevaluated.as_ref().filter(|it| it.constrains);
        let outer = self.evaluated.take();
        if outer.is_some() || constrained.is_some() {
            self.evaluated = Some(BTreeSet::new());
        }
        let mut fits =
            self.all(node.keywords.iter(), |this, it| this.evaluate_keyword(it, value))?;
        // After a mismatch, members that the mismatched keyword would have evaluated are not known.
        if let (true, Some(rest), Some(_)) = (fits, &node.unevaluated, &self.evaluated) {
            fits = self.check_unevaluated(rest, value)?;
        }
        let own = mem::replace(&mut self.evaluated, outer);
        if let (true, Some(own), Some(outer)) = (fits, own, &mut self.evaluated) {
            self.budget.spend(own.len())?;
            outer.extend(own);
        }
        self.depth -= 1;
        Ok(fits)
    }

    /// Whether all items hold. After a mismatch, the rest is evaluated only if its mismatches are recorded.
    fn all<T>(
        &mut self,
        items: impl Iterator<Item = T>,
        mut fits: impl FnMut(&mut Self, T) -> EvaluationResult,
    ) -> EvaluationResult {
        let mut all = true;
        for item in items {
            all &= fits(self, item)?;
            let goes_on = all || self.collects && self.is_recording();
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(all)
    }

    /// Returns `true` if a mismatch would be recorded.
    fn is_recording(&self) -> bool {
        self.quiet == 0 && self.room > 0
    }

    /// Evaluates without recording an error.
    fn evaluate_quietly(&mut self, id: Id, value: &'v Value) -> EvaluationResult {
        self.quiet += 1;
        let fits = self.evaluate_node(id, value)?;
        self.quiet -= 1;
        Ok(fits)
    }

    /// Evaluates without recording an error, and without effect on `unevaluatedProperties` and `unevaluatedItems`.
    fn evaluate_apart(&mut self, id: Id, value: &'v Value) -> EvaluationResult {
        let outer = self.evaluated.take();
        let fits = self.evaluate_quietly(id, value)?;
        self.evaluated = outer;
        Ok(fits)
    }

    fn evaluate_part(&mut self, part: Part<'v>, id: Id, value: &'v Value) -> EvaluationResult {
        let outer = self.evaluated.take();
        self.path.push(part);
        let fits = self.evaluate_node(id, value)?;
        self.path.pop();
        self.evaluated = outer;
        Ok(fits)
    }

    /// A keyword applied to the member or item at this position.
    fn mark_evaluated(&mut self, position: usize) {
        if let Some(all) = &mut self.evaluated {
            all.insert(position);
        }
    }

    /// Checks a condition; records a mismatch.
    fn require(&mut self, holds: bool, what: impl FnOnce() -> String) -> EvaluationResult {
        if holds { Ok(true) } else { self.reject(|| (MismatchKind::Other, what())) }
    }

    /// Records a mismatch.
    fn reject(&mut self, why: impl FnOnce() -> (MismatchKind, String)) -> EvaluationResult {
        if !self.is_recording() {
            return Ok(false);
        }
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
        if self.collects {
            // The budget also limits the memory of the paths.
            self.budget.spend(1 + path.len() / BYTES_PER_STEP)?;
        }
        self.room -= 1;
        let (kind, what) = why();
        self.mismatches.push(Mismatch { path, what, kind });
        Ok(false)
    }

    fn evaluate_keyword(&mut self, keyword: &'s Keyword, value: &'v Value) -> EvaluationResult {
        match keyword {
            Keyword::False => {
                self.require(false, || format!("False schema does not allow {}", quote(value)))
            }
            Keyword::Ref(target) => self.follow_reference(*target, value),
            Keyword::Type(types) => self.check_types(types, value),
            Keyword::Enum(values) => self.check_enum(values, value),
            Keyword::Const(expected) => {
                let equal = are_equal(&mut self.budget, expected, value)?;
                self.require(equal, || format!("{} was expected", quote(expected)))
            }
            Keyword::AllOf(ids) => self.all(ids.iter(), |this, id| this.evaluate_node(*id, value)),
            Keyword::AnyOf(ids) => self.check_any_of(ids, value),
            Keyword::OneOf(ids) => self.check_one_of(ids, value),
            Keyword::Not(id) => {
                let fits = self.evaluate_apart(*id, value)?;
                self.require(!fits, || format!("{} is not allowed by \"not\"", quote(value)))
            }
            Keyword::If { test, then, otherwise } => {
                let chosen = if self.evaluate_quietly(*test, value)? { then } else { otherwise };
                chosen.map_or(Ok(true), |id| self.evaluate_node(id, value))
            }
            keyword => match value {
                Value::Number(number) => self.check_number(keyword, number),
                Value::String(text) => self.check_text(keyword, text, value),
                Value::Array(items) => self.check_array(keyword, items, value),
                Value::Object(members) => self.check_object(keyword, members, value),
                Value::Null | Value::Bool(_) => Ok(true),
            },
        }
    }

    /// Follows a reference. One that returns to itself for the same value imposes no constraint.
    fn follow_reference(&mut self, target: Id, value: &'v Value) -> EvaluationResult {
        let following = (target, std::ptr::from_ref(value));
        self.budget.spend(self.followed.len() / 8)?;
        if self.followed.contains(&following) {
            return Ok(true);
        }
        self.followed.push(following);
        let fits = self.evaluate_node(target, value)?;
        self.followed.pop();
        Ok(fits)
    }

    fn check_types(&mut self, types: &Types, value: &Value) -> EvaluationResult {
        if types.accept(value) {
            return Ok(true);
        }
        self.reject(|| {
            let names: Vec<String> =
                types.accepted.iter().map(|one| format!("\"{one}\"")).collect();
            let word = if names.len() == 1 { "type" } else { "types" };
            let what = format!("{} is not of {word} {}", quote(value), names.join(", "));
            (MismatchKind::Type(types.accepted.clone()), what)
        })
    }

    fn check_enum(&mut self, values: &[Value], value: &Value) -> EvaluationResult {
        for one in values {
            if are_equal(&mut self.budget, one, value)? {
                return Ok(true);
            }
        }
        self.require(false, || format!("{} is not one of {}", quote(value), quote_all(values)))
    }

    fn check_any_of(&mut self, ids: &[Id], value: &'v Value) -> EvaluationResult {
        // All that match count for `unevaluatedProperties` and `unevaluatedItems`.
        let enough = if self.evaluated.is_some() { usize::MAX } else { 1 };
        let (found, branches) = self.count_matches(ids, value, enough)?;
        if found > 0 {
            return Ok(true);
        }
        self.reject(|| {
            let what = format!("{} is valid under none of \"anyOf\"", quote(value));
            (MismatchKind::Alternatives(branches), what)
        })
    }

    fn check_one_of(&mut self, ids: &[Id], value: &'v Value) -> EvaluationResult {
        let (found, branches) = self.count_matches(ids, value, 2)?;
        if found == 1 {
            return Ok(true);
        }
        self.reject(|| match found {
            0 => {
                let what = format!("{} is valid under none of \"oneOf\"", quote(value));
                (MismatchKind::Alternatives(branches), what)
            }
            _ => {
                let what = format!("{} is valid under more than one of \"oneOf\"", quote(value));
                (MismatchKind::Other, what)
            }
        })
    }

    /// How many of the subschemas match, counted up to `enough`; if none does, the mismatches with each.
    fn count_matches(
        &mut self,
        ids: &[Id],
        value: &'v Value,
        enough: usize,
    ) -> Result<(usize, Vec<Vec<Mismatch>>), BudgetExhausted> {
        let mut found = 0;
        let mut branches = Vec::new();
        // One is left for the mismatch with all.
        let detailed = self.collects && self.quiet == 0 && self.room > 1;
        if !detailed {
            for id in ids {
                found += usize::from(self.evaluate_quietly(*id, value)?);
                if found == enough {
                    break;
                }
            }
            return Ok((found, branches));
        }
        let room = self.room;
        self.room -= 1;
        let outer = mem::take(&mut self.mismatches);
        for id in ids {
            // After the last place is used, a branch is evaluated without recording.
            found += usize::from(self.evaluate_node(*id, value)?);
            branches.push(mem::take(&mut self.mismatches));
            if found == enough {
                break;
            }
        }
        self.mismatches = outer;
        self.room = if found > 0 { room } else { self.room + 1 };
        Ok((found, branches))
    }

    fn check_number(&mut self, keyword: &Keyword, number: &Number) -> EvaluationResult {
        match keyword {
            Keyword::Minimum(limit) => self.require(compare(number, limit).is_ge(), || {
                format!("{number} is less than the minimum of {limit}")
            }),
            Keyword::Maximum(limit) => self.require(compare(number, limit).is_le(), || {
                format!("{number} is greater than the maximum of {limit}")
            }),
            Keyword::ExclusiveMinimum(limit) => self
                .require(compare(number, limit).is_gt(), || {
                    format!("{number} is less than or equal to the minimum of {limit}")
                }),
            Keyword::ExclusiveMaximum(limit) => self
                .require(compare(number, limit).is_lt(), || {
                    format!("{number} is greater than or equal to the maximum of {limit}")
                }),
            Keyword::MultipleOf(divisor) => self.require(is_multiple(number, divisor), || {
                format!("{number} is not a multiple of {divisor}")
            }),
            _ => Ok(true),
        }
    }

    fn check_text(&mut self, keyword: &Keyword, text: &str, value: &Value) -> EvaluationResult {
        let (holds, what) = match keyword {
            Keyword::MinLength(least) => {
                self.budget.spend(text.len() / BYTES_PER_STEP)?;
                (count_chars(text) >= *least, format!("is shorter than {least} characters"))
            }
            Keyword::MaxLength(most) => {
                self.budget.spend(text.len() / BYTES_PER_STEP)?;
                (count_chars(text) <= *most, format!("is longer than {most} characters"))
            }
            Keyword::Pattern(pattern) => {
                let matches = self.matches_pattern(pattern, text)?;
                (matches, format!("does not match {}", quote_text(&pattern.source)))
            }
            _ => return Ok(true),
        };
        self.require(holds, || format!("{} {what}", quote(value)))
    }

    fn matches_pattern(&mut self, pattern: &Pattern, text: &str) -> EvaluationResult {
        let bytes = text.len();
        self.budget
            .spend(1 + bytes / BYTES_PER_STEP + bytes.saturating_mul(pattern.steps_per_byte))?;
        Ok(pattern.regex.is_match(text))
    }

    fn check_array(
        &mut self,
        keyword: &'s Keyword,
        items: &'v [Value],
        value: &Value,
    ) -> EvaluationResult {
        let count = items.len() as u64;
        match keyword {
            Keyword::MinItems(least) => self.require(count >= *least, || {
                format!("{} has less than {least} items", quote(value))
            }),
            Keyword::MaxItems(most) => self
                .require(count <= *most, || format!("{} has more than {most} items", quote(value))),
            Keyword::UniqueItems => {
                let unique = are_unique(&mut self.budget, items)?;
                self.require(unique, || format!("{} has non-unique elements", quote(value)))
            }
            Keyword::Items { prefix, rest } => {
                self.all(items.iter().enumerate(), |this, (at, item)| {
                    let Some(id) = prefix.get(at).or(rest.as_ref()) else { return Ok(true) };
                    this.mark_evaluated(at);
                    this.evaluate_part(Part::Item(at), *id, item)
                })
            }
            Keyword::Contains(contains) => self.check_contains(contains, items, value),
            _ => Ok(true),
        }
    }

    fn check_contains(
        &mut self,
        contains: &Contains,
        items: &'v [Value],
        value: &Value,
    ) -> EvaluationResult {
        let Contains { schema, min, max, marks_matches } = contains;
        let must_mark = *marks_matches && self.evaluated.is_some();
        let mut found = 0;
        for (at, item) in items.iter().enumerate() {
            if self.evaluate_apart(*schema, item)? {
                found += 1;
                if must_mark {
                    self.mark_evaluated(at);
                }
            }
            let is_decided = match max {
                Some(max) => found > *max,
                None => found >= *min,
            };
            // Every item that matches has to be marked.
            if is_decided && !must_mark {
                break;
            }
        }
        // Not `found` itself: the items were counted until this was decided.
        if found < *min {
            return self.require(false, || {
                format!("{} has less than {min} items that match \"contains\"", quote(value))
            });
        }
        self.require(max.is_none_or(|max| found <= max), || {
            let max = max.unwrap_or_default();
            format!("{} has more than {max} items that match \"contains\"", quote(value))
        })
    }

    fn check_object(
        &mut self,
        keyword: &'s Keyword,
        members: &'v Map<String, Value>,
        value: &'v Value,
    ) -> EvaluationResult {
        let count = members.len() as u64;
        match keyword {
            Keyword::MinProperties(least) => self.require(count >= *least, || {
                format!("{} has less than {least} properties", quote(value))
            }),
            Keyword::MaxProperties(most) => self.require(count <= *most, || {
                format!("{} has more than {most} properties", quote(value))
            }),
            Keyword::Required(names) => self.all(names.iter(), |this, name| {
                this.budget.spend(1)?;
                this.require_member(members, name, || {
                    format!("{} is a required property", quote_text(name))
                })
            }),
            Keyword::Properties { .. } => self.check_properties(keyword, members),
            Keyword::PropertyNames(id) => self.check_names(*id, members),
            Keyword::DependentRequired(all) => self.all(all.iter(), |this, (name, required)| {
                this.budget.spend(1)?;
                if !members.contains_key(name) {
                    return Ok(true);
                }
                this.all(required.iter(), |this, required| {
                    this.budget.spend(1)?;
                    this.require_member(members, required, || {
                        let required = quote_text(required);
                        format!("{required} is required if {} is present", quote_text(name))
                    })
                })
            }),
            Keyword::DependentSchemas(all) => self.all(all.iter(), |this, (name, id)| {
                this.budget.spend(1)?;
                if members.contains_key(name) { this.evaluate_node(*id, value) } else { Ok(true) }
            }),
            _ => Ok(true),
        }
    }

    /// Checks that a member exists.
    fn require_member(
        &mut self,
        members: &Map<String, Value>,
        name: &str,
        what: impl FnOnce() -> String,
    ) -> EvaluationResult {
        if members.contains_key(name) {
            return Ok(true);
        }
        self.reject(|| (MismatchKind::Missing(name.to_owned()), what()))
    }

    fn check_properties(
        &mut self,
        keyword: &'s Keyword,
        members: &'v Map<String, Value>,
    ) -> EvaluationResult {
        let Keyword::Properties { properties, patterns, rest } = keyword else { return Ok(true) };
        let mut unexpected = Vec::new();
        let fits = self.all(members.iter().enumerate(), |this, (at, (name, member))| {
            this.budget.spend(1)?;
            let mut fits = true;
            let mut known = false;
            if let Some(id) = properties.get(name) {
                known = true;
                fits &= this.evaluate_part(Part::Name(name), *id, member)?;
            }
            for (pattern, id) in patterns {
                if this.matches_pattern(pattern, name)? {
                    known = true;
                    fits &= this.evaluate_part(Part::Name(name), *id, member)?;
                }
            }
            if known || rest.is_some() {
                this.mark_evaluated(at);
            }
            let (false, Some(rest)) = (known, rest) else { return Ok(fits) };
            if this.refuses_all(*rest) {
                unexpected.push(name);
                return Ok(false);
            }
            this.evaluate_part(Part::Name(name), *rest, member)
        })?;
        if unexpected.is_empty() {
            return Ok(fits);
        }
        self.reject_unexpected("properties", unexpected.iter().map(|name| quote_name(name)))
    }

    /// Rejects members or items that are not allowed.
    fn reject_unexpected(
        &mut self,
        what: &str,
        all: impl ExactSizeIterator<Item = String>,
    ) -> EvaluationResult {
        let verb = if all.len() == 1 { "was" } else { "were" };
        self.require(false, || {
            format!("Additional {what} are not allowed ({} {verb} unexpected)", join_first(all))
        })
    }

    fn refuses_all(&self, id: Id) -> bool {
        matches!(self.schema.nodes[id].keywords.as_slice(), [Keyword::False])
    }

    fn check_unevaluated(&mut self, rest: &Unevaluated, value: &'v Value) -> EvaluationResult {
        let (what, id, parts): (_, _, Vec<(Part<'v>, &'v Value)>) = match value {
            Value::Object(members) => {
                let parts = members.iter().map(|(name, member)| (Part::Name(name), member));
                ("properties", rest.properties, parts.collect())
            }
            Value::Array(items) => {
                let parts = items.iter().enumerate().map(|(at, item)| (Part::Item(at), item));
                ("items", rest.items, parts.collect())
            }
            _ => return Ok(true),
        };
        let Some(id) = id else { return Ok(true) };
        self.budget.spend(parts.len())?;
        let known = self.evaluated.clone().unwrap_or_default();
        let mut unexpected = Vec::new();
        let left = parts.into_iter().enumerate().filter(|(at, _)| !known.contains(at));
        let fits = self.all(left, |this, (at, (part, value))| {
            this.mark_evaluated(at);
            if !this.refuses_all(id) {
                return this.evaluate_part(part, id, value);
            }
            unexpected.push(match part {
                Part::Name(name) => quote_name(name),
                Part::Item(at) => format!("item {at}"),
            });
            Ok(false)
        })?;
        if unexpected.is_empty() {
            return Ok(fits);
        }
        self.reject_unexpected(what, unexpected.into_iter())
    }

    /// Checks member names against a schema. They are not part of the value, so they get their own scope.
    fn check_names(&mut self, id: Id, members: &Map<String, Value>) -> EvaluationResult {
        self.all(members.keys(), |this, name| {
            this.budget.spend(1 + name.len() / BYTES_PER_STEP)?;
            let name = Value::String(name.clone());
            let mut inner = Evaluation::new(this.schema, this.budget.left);
            inner.depth = this.depth;
            inner.quiet = 1;
            let result = inner.evaluate_node(id, &name);
            this.budget.left = inner.budget.left;
            let fits = result?;
            this.require(fits, || format!("{} is not an allowed property name", quote(&name)))
        })
    }
}

fn count_chars(text: &str) -> u64 {
    text.chars().count() as u64
}
