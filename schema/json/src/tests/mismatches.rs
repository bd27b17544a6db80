//! Compares the locations of mismatches with those of `jsonschema`, and tests their limits.

use std::collections::BTreeSet;

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{STEPS, leads_in_circles, schemas, values};
use crate::{BudgetExhausted, JsonType, Mismatch, MismatchKind, Schema};

const MOST: usize = 1_000;

/// The locations, those of alternatives included.
fn places(all: &[Mismatch], into: &mut BTreeSet<String>) {
    for one in all {
        into.insert(one.path.clone());
        if let MismatchKind::Alternatives(branches) = &one.kind {
            branches.iter().for_each(|branch| places(branch, into));
        }
    }
}

/// The locations of the oracle's errors, those of alternatives included.
fn places_of_oracle<'a>(
    all: impl Iterator<Item = &'a ValidationError<'a>>,
    into: &mut BTreeSet<String>,
) {
    for one in all {
        into.insert(one.instance_path().to_string());
        if let ValidationErrorKind::AnyOf { context }
        | ValidationErrorKind::OneOfNotValid { context } = one.kind()
        {
            context.iter().for_each(|branch| places_of_oracle(branch.iter(), into));
        }
    }
}

/// The types and missing members at each location.
fn kinds(all: &[Mismatch], into: &mut BTreeSet<(String, String)>) {
    for one in all {
        match &one.kind {
            MismatchKind::Type(types) => into.extend(
                types.iter().map(|accepted| (one.path.clone(), format!("type {accepted}"))),
            ),
            MismatchKind::Missing(name) => {
                into.insert((one.path.clone(), format!("missing {name}")));
            }
            MismatchKind::Alternatives(branches) => {
                branches.iter().for_each(|branch| kinds(branch, into));
            }
            MismatchKind::Other => {}
        }
    }
}

fn kinds_of_oracle<'a>(
    all: impl Iterator<Item = &'a ValidationError<'a>>,
    into: &mut BTreeSet<(String, String)>,
) {
    use jsonschema::error::TypeKind;
    for one in all {
        let path = || one.instance_path().to_string();
        match one.kind() {
            ValidationErrorKind::Type { kind: TypeKind::Single(accepted) } => {
                into.insert((path(), format!("type {accepted}")));
            }
            ValidationErrorKind::Type { kind: TypeKind::Multiple(types) } => {
                into.extend(types.iter().map(|accepted| (path(), format!("type {accepted}"))));
            }
            ValidationErrorKind::Required { property } => {
                into.insert((path(), format!("missing {}", property.as_str().expect("a name"))));
            }
            ValidationErrorKind::AnyOf { context }
            | ValidationErrorKind::OneOfNotValid { context } => {
                context.iter().for_each(|branch| kinds_of_oracle(branch.iter(), into));
            }
            _ => {}
        }
    }
}

fn all(schema: &Value, value: &Value) -> Vec<Mismatch> {
    let compiled = Schema::compile(schema).expect("it is a schema");
    compiled.mismatches(value, STEPS, MOST).expect("the budget suffices")
}

fn output(mismatches: &[Mismatch]) -> Vec<String> {
    mismatches.iter().map(|it| format!("{}: {}", it.path, it.what)).collect()
}

#[test]
fn all_mismatches_are_collected() {
    let schema = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {"a": {"type": "integer"}, "list": {"items": {"minimum": 2, "type": ["integer",
            "null"]}}, "either": {"anyOf": [{"type": "null"}, {"required": ["x"]}]}}});
    let value = json!({"list": [1, 2, "x"], "either": {"y": 1}, "c": 1, "d": 2, "a": 1.5});
    let found = all(&schema, &value);
    assert_eq!(
        output(&found),
        [
            ": \"b\" is a required property",
            "/a: 1.5 is not of type \"integer\"",
            "/either: {\"y\":1} is valid under none of \"anyOf\"",
            "/list/0: 1 is less than the minimum of 2",
            "/list/2: \"x\" is not of types \"integer\", \"null\"",
            ": Additional properties are not allowed ('c', 'd' were unexpected)",
        ]
    );
    assert_eq!(found[0].kind, MismatchKind::Missing("b".to_owned()));
    assert_eq!(found[4].kind, MismatchKind::Type(vec![JsonType::Integer, JsonType::Null]));
    let MismatchKind::Alternatives(branches) = &found[2].kind else { panic!("{found:?}") };
    let branches: Vec<Vec<String>> = branches.iter().map(|branch| output(branch)).collect();
    assert_eq!(
        branches,
        [["/either: {\"y\":1} is not of type \"null\""], ["/either: \"x\" is a required property"]]
    );
}

#[test]
fn mismatches_are_limited() {
    let schema = json!({"items": {"anyOf": [{"type": "null"}, {"required": ["x"]}]}});
    let value = json!([{}, {}, {}]);
    let compiled = Schema::compile(&schema).expect("it is a schema");
    let counts: Vec<(usize, usize)> = (0..=10)
        .map(|most| {
            let found = compiled.mismatches(&value, STEPS, most).expect("the budget suffices");
            found.iter().fold((0, 0), |(all, inner), one| match &one.kind {
                MismatchKind::Alternatives(branches) => {
                    (all + 1, inner + branches.iter().map(Vec::len).sum::<usize>())
                }
                _ => (all + 1, inner),
            })
        })
        .collect();
    let expected =
        [(1, 0), (1, 0), (1, 1), (1, 2), (2, 2), (2, 3), (2, 4), (3, 4), (3, 5), (3, 6), (3, 6)];
    assert_eq!(counts, expected);
    assert_eq!(compiled.mismatches(&value, 3, 10), Err(BudgetExhausted));
}

#[test]
fn descriptions_quote_no_long_text() {
    let long = "ä".repeat(100_000);
    let schema = json!({"required": [long], "additionalProperties": false, "const": [long],
        "enum": vec![long.clone(); 50], "dependentRequired": {"ab": [long.clone() + "x"]},
        "maxProperties": 1, "propertyNames": {"maxLength": 2}});
    let value = json!({"ab": long, long.clone() + "y": 1});
    let found = all(&schema, &value);
    assert_eq!(found.len(), 7, "{found:?}");
    for one in found {
        assert!(one.what.len() < 3_000, "{} bytes", one.what.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn locations_agree_with_the_oracle(schema in schemas(), value in values()) {
        prop_assume!(!leads_in_circles(&schema));
        let oracle = jsonschema::validator_for(&schema).expect("it is a schema");
        let compiled = Schema::compile(&schema).expect("it is a schema");
        let Ok(found) = compiled.mismatches(&value, STEPS, MOST) else { return Ok(()) };
        prop_assert_eq!(found.is_empty(), compiled.check(&value, STEPS).is_ok());
        let errors: Vec<ValidationError<'_>> = oracle.iter_errors(&value).collect();
        let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
        places(&found, &mut ours);
        places_of_oracle(errors.iter(), &mut theirs);
        prop_assert_eq!(&ours, &theirs, "{} and {}: {:?} {:?}", schema, value, found, errors);
        let (mut ours, mut theirs) = (BTreeSet::new(), BTreeSet::new());
        kinds(&found, &mut ours);
        kinds_of_oracle(errors.iter(), &mut theirs);
        prop_assert_eq!(ours, theirs, "{} and {}: {:?} {:?}", schema, value, found, errors);
    }

    /// Fewer steps or places never change whether there is a mismatch.
    #[test]
    fn limits_do_not_change_the_verdict(
        schema in schemas(),
        value in values(),
        steps in 0..500_u64,
        most in 1..6_usize,
    ) {
        prop_assume!(!leads_in_circles(&schema));
        let compiled = Schema::compile(&schema).expect("it is a schema");
        let fits = compiled.check(&value, STEPS);
        if let Ok(found) = compiled.mismatches(&value, steps, most) {
            prop_assert_eq!(found.is_empty(), fits.is_ok());
        }
    }
}
