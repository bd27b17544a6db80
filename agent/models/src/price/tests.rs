//! Prices as they are written, and what answers cost by them.

use crate::{Completeness, Price, Usage};

fn price(yaml: &str) -> Result<Price, String> {
    serde_saphyr::from_str(yaml).map_err(|why| why.to_string())
}

fn usage(input: Option<u64>, output: Option<u64>, cached: Option<u64>) -> Usage {
    let told = Usage {
        input_tokens: input,
        output_tokens: output,
        cached_tokens: cached,
        ..Usage::default()
    };
    told.judged()
}

#[test]
fn decimals_become_whole_millionths() {
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
fn what_is_no_price_is_refused() {
    for wrong in ["-1", "0.0000001", ".nan", "2000000"] {
        let written = format!("{{ input_per_million: {wrong}, output_per_million: 1 }}");
        let error = price(&written).expect_err(wrong);
        assert!(error.contains("is no price"), "{error}");
    }
    price("{ input_per_million: 1 }").expect_err("an answer costs too");
    price("{ input_per_million: 1, output_per_million: 1, currency: EUR }").expect_err("dollars");
}

#[test]
fn what_is_cached_costs_its_own_price_and_else_that_of_input() {
    let own =
        price("{ input_per_million: 2, output_per_million: 8, cached_input_per_million: 0.5 }");
    let used = usage(Some(1_000), Some(100), Some(400));
    // 600 × 2 + 400 × 0.5 + 100 × 8, in millionths of a dollar.
    assert_eq!(own.expect("it is one").cost_micros(&used), Some(2_200));
    let none = price("{ input_per_million: 2, output_per_million: 8 }").expect("it is one");
    assert_eq!(none.cost_micros(&used), Some(2_800));
}

#[test]
fn a_cost_is_rounded_to_the_nearest_millionth() {
    let cheap = price("{ input_per_million: 0.1, output_per_million: 0 }").expect("it is one");
    for (tokens, micros) in [(0, 0), (4, 0), (5, 1), (14, 1), (15, 2)] {
        assert_eq!(cheap.cost_micros(&usage(Some(tokens), Some(0), None)), Some(micros));
    }
}

#[test]
fn what_is_not_reported_is_not_charged_by_a_guess() {
    let some = price("{ input_per_million: 2, output_per_million: 8 }").expect("it is one");
    for (input, output) in [(None, None), (Some(10), None), (None, Some(10))] {
        let used = usage(input, output, None);
        assert_ne!(used.completeness, Completeness::Complete);
        assert_eq!(some.cost_micros(&used), None);
    }
}
