//! Embeddings: vectors of texts, for search by meaning.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ModelError;

/// Maximum number of texts of a request.
pub const EMBEDDED_TEXTS: usize = 100;

/// Maximum number of numbers of a vector.
pub const VECTOR_NUMBERS: usize = 4_096;

/// Texts to make vectors of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingRequest {
    /// The model.
    pub model: String,
    /// The texts, at most [`EMBEDDED_TEXTS`].
    pub texts: Vec<String>,
}

/// The vectors of texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// One vector for each text, in their order. All have the same length.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of the texts, if the provider reports them.
    pub input_tokens: Option<u64>,
}

impl Embeddings {
    /// Reads the answer of the `/embeddings` API of OpenAI to a request of this number of texts.
    pub(crate) fn from_answer(answer: &Value, texts: usize) -> Result<Embeddings, ModelError> {
        let wrong = |what: &str| ModelError::invalid_response(format!("the provider {what}"));
        let data = answer["data"].as_array().ok_or_else(|| wrong("sent no embeddings"))?;
        if data.len() != texts {
            return Err(wrong("sent another number of embeddings than of texts"));
        }
        let mut vectors = vec![Vec::new(); texts];
        for (at, item) in data.iter().enumerate() {
            let place = match &item["index"] {
                Value::Null => Some(at),
                index => index.as_u64().and_then(|index| usize::try_from(index).ok()),
            };
            let slot = place
                .and_then(|place| vectors.get_mut(place))
                .filter(|slot| slot.is_empty())
                .ok_or_else(|| wrong("sent embeddings with wrong numbers"))?;
            *slot = vector(&item["embedding"]).ok_or_else(|| wrong("sent a wrong embedding"))?;
        }
        let length = vectors.first().map_or(0, Vec::len);
        if vectors.iter().any(|vector| vector.len() != length) {
            return Err(wrong("sent embeddings of different lengths"));
        }
        Ok(Embeddings { vectors, input_tokens: answer["usage"]["prompt_tokens"].as_u64() })
    }

    /// Returns the bytes of a vector: 32-bit floats, little-endian.
    #[must_use]
    pub fn bytes(vector: &[f32]) -> Vec<u8> {
        vector.iter().flat_map(|number| number.to_le_bytes()).collect()
    }
}

/// Returns a vector of finite numbers.
fn vector(numbers: &Value) -> Option<Vec<f32>> {
    let numbers = numbers.as_array()?;
    if numbers.is_empty() || numbers.len() > VECTOR_NUMBERS {
        return None;
    }
    let numbers = numbers.iter().map(|number| Some(number.as_f64()? as f32));
    let vector: Option<Vec<f32>> = numbers.collect();
    vector.filter(|vector| vector.iter().all(|number| number.is_finite()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vectors_are_in_the_order_of_the_texts() {
        let answer = json!({"data": [{"index": 1, "embedding": [0, 1]},
            {"index": 0, "embedding": [0.5, -1]}], "usage": {"prompt_tokens": 7}});
        let read = Embeddings::from_answer(&answer, 2).expect("it is valid");
        assert_eq!(read.vectors, [vec![0.5, -1.0], vec![0.0, 1.0]]);
        assert_eq!(read.input_tokens, Some(7));
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        for (answer, texts) in [
            (json!({}), 1),
            (json!({"data": []}), 1),
            (json!({"data": [{"embedding": []}]}), 1),
            (json!({"data": [{"embedding": ["1"]}]}), 1),
            (json!({"data": [{"embedding": [1e300]}]}), 1),
            (json!({"data": [{"embedding": vec![0; VECTOR_NUMBERS + 1]}]}), 1),
            (json!({"data": [{"index": 1, "embedding": [1]}]}), 1),
            (json!({"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}), 2),
            (json!({"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}), 2),
        ] {
            assert!(Embeddings::from_answer(&answer, texts).is_err(), "{answer}");
        }
    }
}
