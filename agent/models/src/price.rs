//! What tokens cost, as somebody configured it. Nobody's list prices are in here: they change, and differ by contract.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Completeness, Usage};

/// Prices of a million tokens, in US dollars as a configuration has them; kept in millionths of a dollar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Of a request.
    #[serde(rename = "input_per_million", deserialize_with = "micros")]
    pub input_micros: u64,
    /// Of an answer, reasoning among it.
    #[serde(rename = "output_per_million", deserialize_with = "micros")]
    pub output_micros: u64,
    /// Of what of a request is read from a cache; as the rest of it, where this is absent.
    #[serde(rename = "cached_input_per_million", default, deserialize_with = "some_micros")]
    pub cached_input_micros: Option<u64>,
}

/// Tokens that the prices are of.
const MILLION: u128 = 1_000_000;

impl Price {
    /// What an answer cost, in millionths of a dollar, rounded to the nearest. None where the provider did not
    /// report all of what it took. What a provider takes for writing to its cache counts as ordinary input.
    #[must_use]
    pub fn cost_micros(&self, usage: &Usage) -> Option<i64> {
        let (Some(input), Some(output)) = (usage.input_tokens, usage.output_tokens) else {
            return None;
        };
        if usage.completeness != Completeness::Complete {
            return None;
        }
        let cached = usage.cached_tokens.unwrap_or(0).min(input);
        let of = |tokens: u64, micros: u64| u128::from(tokens) * u128::from(micros);
        let all = of(input - cached, self.input_micros)
            + of(cached, self.cached_input_micros.unwrap_or(self.input_micros))
            + of(output, self.output_micros);
        i64::try_from((all + MILLION / 2) / MILLION).ok()
    }
}

/// The most that a million tokens may cost, in dollars: what is above is a slip of the decimal point.
const MOST_DOLLARS: f64 = 1_000_000.0;

/// A decimal number of dollars, in millionths. One that is finer than that is refused, and not rounded.
fn micros<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let dollars = f64::deserialize(from)?;
    let micros = dollars * 1e6;
    // No decimal of six places within the bounds is further from its double than this.
    if !(0.0..=MOST_DOLLARS).contains(&dollars) || (micros - micros.round()).abs() > 1e-3 {
        let what = "is no price: dollars from 0 to 1,000,000, with six decimals at most";
        return Err(D::Error::custom(format!("{dollars} {what}")));
    }
    Ok(micros.round() as u64)
}

fn some_micros<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    micros(from).map(Some)
}

#[cfg(test)]
mod tests;
