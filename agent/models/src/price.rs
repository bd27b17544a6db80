//! Configured token prices. There are no built-in prices: list prices change, and contracts differ.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Completeness, Usage};

/// Prices per million tokens. The configuration uses US dollars; the fields hold microdollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a price: a map with input_per_million and output_per_million"
)]
pub struct Price {
    /// Price of input tokens.
    #[serde(rename = "input_per_million", deserialize_with = "micros")]
    pub input_micros: u64,
    /// Price of output tokens, including reasoning.
    #[serde(rename = "output_per_million", deserialize_with = "micros")]
    pub output_micros: u64,
    /// Price of cached input tokens; the default is the price of input tokens.
    #[serde(rename = "cached_input_per_million", default, deserialize_with = "some_micros")]
    pub cached_input_micros: Option<u64>,
}

/// The number of tokens that prices refer to.
const MILLION: u128 = 1_000_000;

impl Price {
    /// Returns the cost of an answer in microdollars, rounded to nearest. `None` if the provider did not report
    /// complete usage. Cache writes count as ordinary input.
    #[must_use]
    pub fn cost_micros(&self, usage: &Usage) -> Option<i64> {
        let (Some(input), Some(output)) = (usage.input_tokens, usage.output_tokens) else {
            return None;
        };
        if usage.completeness != Completeness::Complete {
            return None;
        }
        let cached = usage.cached_tokens.unwrap_or(0).min(input);
        let cached_price = self.cached_input_micros.unwrap_or(self.input_micros);
        let all = multiply(input - cached, self.input_micros)
            + multiply(cached, cached_price)
            + multiply(output, self.output_micros);
        i64::try_from((all + MILLION / 2) / MILLION).ok()
    }
}

/// Converts microdollars to dollars.
#[must_use]
pub fn dollars(micros: i64) -> f64 {
    micros as f64 / 1e6
}

fn multiply(tokens: u64, micros: u64) -> u128 {
    u128::from(tokens) * u128::from(micros)
}

/// The maximum price of a million tokens, in dollars. A higher value is most likely a misplaced decimal point.
const MOST_DOLLARS: f64 = 1_000_000.0;

/// Converts dollars to microdollars. A value with more than six decimals is refused instead of rounded.
fn micros<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let dollars = f64::deserialize(from)?;
    let micros = dollars * 1e6;
    // Any decimal of six places in this range is closer to its double than this.
    if !(0.0..=MOST_DOLLARS).contains(&dollars) || (micros - micros.round()).abs() > 1e-3 {
        let what =
            "is not a valid price: use dollars from 0 to 1,000,000 with at most six decimals";
        return Err(D::Error::custom(format!("{dollars} {what}")));
    }
    Ok(micros.round() as u64)
}

fn some_micros<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    micros(from).map(Some)
}

#[cfg(test)]
mod tests;
