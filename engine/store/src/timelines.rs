//! The timelines of a file: which opening wrote which part of the log.
//!
//! A file can be copied, and both copies can be continued: an older backup is restored, or a server is started on a copy.
//! The copies then have different events with equal seqs, so a seq alone does not name a state. Each opening for writing
//! starts a timeline: an id, stored with the seq after which it starts, before anything is written on it. A copy that is
//! made from the records of the journal has the same timelines. The same idea as PostgreSQL's timelines
//! <https://www.postgresql.org/docs/current/continuous-archiving.html>.

use abide_schema::Seq;

/// The number of timelines that a file keeps. A client of an older one fetches whole results again.
const KEPT: usize = 256;

/// Maximum bytes of an id. Those that Abide makes have 16.
const ID_BYTES: usize = 64;

/// Whether a text can be the id of a timeline: it is stored in a list, and sent to each client.
pub(crate) fn is_id(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=ID_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The timelines of a file, the current one last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timelines(Vec<Timeline>);

/// A timeline, and the last event before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Timeline {
    after: Seq,
    id: String,
}

impl Timelines {
    /// Returns the stored timelines of a file, with a new one after an event.
    pub(crate) fn continued(stored: Option<&str>, after: Seq, id: String) -> Timelines {
        let mut all: Vec<Timeline> =
            stored.unwrap_or_default().split(' ').filter_map(Timeline::parse).collect();
        all.push(Timeline { after, id });
        all.drain(..all.len().saturating_sub(KEPT));
        Timelines(all)
    }

    /// The form in which a file stores them: `0:9f2c… 57:04be…`.
    pub(crate) fn to_text(&self) -> String {
        let texts = self.0.iter().map(|Timeline { after, id }| format!("{after}:{id}"));
        texts.collect::<Vec<_>>().join(" ")
    }

    /// The id of the current timeline.
    #[must_use]
    pub fn current(&self) -> &str {
        &self.0.last().expect("an open file has a timeline").id
    }

    /// Whether the state that a client knows as this seq of this timeline is a state of the file: the timeline is known,
    /// and the seq is not after its end.
    #[must_use]
    pub fn contain(&self, id: &str, seq: Seq) -> bool {
        let Some(at) = self.0.iter().position(|timeline| timeline.id == id) else { return false };
        self.0.get(at + 1).is_none_or(|next| seq <= next.after)
    }
}

impl Timeline {
    fn parse(text: &str) -> Option<Timeline> {
        let (after, id) = text.split_once(':').filter(|(_, id)| is_id(id))?;
        Some(Timeline { after: Seq(after.parse().ok()?), id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::{ID_BYTES, KEPT, Timelines};
    use abide_schema::Seq;

    /// Opens a file with this many events once more.
    fn open(stored: &str, head: i64) -> (String, Timelines) {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let timelines = Timelines::continued(Some(stored), Seq(head), id);
        (timelines.to_text(), timelines)
    }

    #[test]
    fn a_state_is_known_up_to_the_end_of_its_timeline() {
        let (stored, first) = open("", 0);
        let (stored, second) = open(&stored, 100);
        let (_, third) = open(&stored, 150);
        let contain = |id: &Timelines, seq| third.contain(id.current(), Seq(seq));
        assert_eq!([0, 100, 101].map(|seq| contain(&first, seq)), [true, true, false]);
        assert_eq!([100, 150, 151].map(|seq| contain(&second, seq)), [true, true, false]);
        assert_eq!([100, 150, 900].map(|seq| contain(&third, seq)), [true, true, true]);
        assert!(!third.contain("another", Seq(1)));
    }

    #[test]
    fn copies_do_not_know_each_others_states() {
        let (backup, before) = open("", 0);
        let (_, original) = open(&backup, 100);
        let (_, restored) = open(&backup, 100);
        for copy in [&original, &restored] {
            assert!(copy.contain(before.current(), Seq(100)));
            assert!(!copy.contain(before.current(), Seq(101)));
        }
        assert!(!restored.contain(original.current(), Seq(100)));
    }

    #[test]
    fn an_idle_restart_changes_nothing_for_clients() {
        let (stored, first) = open("", 7);
        let (_, second) = open(&stored, 7);
        assert!(second.contain(first.current(), Seq(7)));
    }

    #[test]
    fn their_number_is_bounded_and_damaged_ones_are_ignored() {
        let stored = (0..2 * KEPT).fold(String::new(), |stored, head| open(&stored, head as i64).0);
        assert_eq!(stored.split(' ').count(), KEPT);
        let long = "a".repeat(ID_BYTES + 1);
        let (stored, _) =
            open(&format!("x:y 5 :: 7:ab 8: 8:a:b 8:{long} 8:\u{e9} 8:a\u{1b}[2J"), 9);
        assert_eq!(stored.split(' ').count(), 2, "{stored}");
    }
}
