//! The rows and arguments that the benchmarks write.

/// The content of a turn. Only the sizes matter.
pub(crate) struct Payload {
    pub(crate) user: String,
    pub(crate) assistant: String,
    /// Canonical JSON of 200 bytes.
    pub(crate) arguments: String,
    /// Canonical JSON of 500 bytes.
    pub(crate) result: String,
    /// The outcome of a call: its row, without long texts.
    pub(crate) row: String,
}

impl Payload {
    pub(crate) fn new() -> Payload {
        let text = |bytes: usize| "Where is my parcel? ".chars().cycle().take(bytes).collect();
        let object = |name: &str, bytes: usize| {
            let filler: String = text(bytes - name.len() - 7);
            format!("{{\"{name}\":\"{filler}\"}}")
        };
        Payload {
            user: text(300),
            assistant: text(400),
            arguments: object("order", 200),
            result: object("found", 500),
            row: "x".repeat(330),
        }
    }

    pub(crate) fn message_arguments(&self, session: &str, role: &str, content: &str) -> String {
        format!("{{\"content\":\"{content}\",\"role\":\"{role}\",\"session_id\":\"{session}\"}}")
    }

    pub(crate) fn request_arguments(&self, session: &str, call: &str) -> String {
        let arguments = &self.arguments;
        format!(
            "{{\"arguments\":{arguments},\"call_id\":\"{call}\",\"claim_lease_ms\":30000,\
             \"session_id\":\"{session}\",\"tool_name\":\"lookup\"}}"
        )
    }

    pub(crate) fn complete_arguments(&self, call: &str) -> String {
        let result = &self.result;
        format!("{{\"call_id\":\"{call}\",\"fencing_token\":12345,\"result\":{result}}}")
    }

    /// A request id with the length of the SDK's uuids.
    pub(crate) fn request_id(&self, session: usize, turn: usize, step: usize) -> String {
        format!("{turn:012}-{session:08}-{step:014}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::TURN_BYTES;

    /// `bench/compare/turn.py` has the same sizes.
    #[test]
    fn the_texts_have_the_sizes_of_a_turn() {
        let Payload { user, arguments, result, assistant, .. } = Payload::new();
        let sizes = [user, arguments, result, assistant].map(|text| text.len());
        assert_eq!(sizes, [300, 200, 500, 400]);
        assert_eq!(sizes.iter().sum::<usize>(), TURN_BYTES);
    }
}
