//! Parsing of prices, and the cost of answers.

use crate::{Completeness, Price, Usage};

fn price(yaml: &str) -> Result<Price, String> {
    abide_yaml::from_str(yaml).map_err(|why| why.to_string())
}

fn usage(input: Option<u64>, output: Option<u64>, cached: Option<u64>) -> Usage {
    Usage { input_tokens: input, output_tokens: output, cached_tokens: cached, ..Usage::default() }
        .with_completeness()
}

#[test]
fn decimals_become_whole_microdollars() {
    let written =
        "{ input_per_million: 0.15, output_per_million: 15, cached_input_per_million: 0.075 }";
    let expected = Price {
        input_micros: 150_000,
        output_micros: 15_000_000,
        cached_input_micros: Some(75_000),
    };
    assert_eq!(price(written), Ok(expected));
}

#[test]
fn invalid_prices_are_refused() {
    for wrong in ["-1", "0.0000001", ".nan", "2000000"] {
        let written = format!("{{ input_per_million: {wrong}, output_per_million: 1 }}");
        let error = price(&written).expect_err(wrong);
        assert!(error.contains("is not a valid price"), "{error}");
    }
    price("{ input_per_million: 1 }").expect_err("output has no price");
    price("{ input_per_million: 1, output_per_million: 1, currency: EUR }")
        .expect_err("unknown field");
}

#[test]
fn cached_tokens_have_their_own_price_or_that_of_input() {
    let own =
        price("{ input_per_million: 2, output_per_million: 8, cached_input_per_million: 0.5 }");
    let used = usage(Some(1_000), Some(100), Some(400));
    // 600 × 2 + 400 × 0.5 + 100 × 8, in microdollars.
    assert_eq!(own.expect("it is valid").cost_micros(&used), Some(2_200));
    let none = price("{ input_per_million: 2, output_per_million: 8 }").expect("it is valid");
    assert_eq!(none.cost_micros(&used), Some(2_800));
}

#[test]
fn a_cost_is_rounded_to_the_nearest_microdollar() {
    let cheap = price("{ input_per_million: 0.1, output_per_million: 0 }").expect("it is valid");
    for (tokens, micros) in [(0, 0), (4, 0), (5, 1), (14, 1), (15, 2)] {
        assert_eq!(cheap.cost_micros(&usage(Some(tokens), Some(0), None)), Some(micros));
    }
}

#[test]
fn without_complete_usage_there_is_no_cost() {
    let some = price("{ input_per_million: 2, output_per_million: 8 }").expect("it is valid");
    for (input, output) in [(None, None), (Some(10), None), (None, Some(10))] {
        let used = usage(input, output, None);
        assert_ne!(used.completeness, Completeness::Complete);
        assert_eq!(some.cost_micros(&used), None);
    }
}
