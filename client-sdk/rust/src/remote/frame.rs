//! The server's messages as the client reads them: the forms of [`abide_schema::wire`], with rows parsed
//! directly into cells and results kept as text.

use std::fmt;
use std::sync::Arc;

use abide_schema::wire::{Column, OrderTerm, Plan, Shape, SubscriptionInfo};
use abide_schema::{Checksum, Code, Refusal, Row, Seq, Value};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value as JsonValue};

use crate::backend::Event;
use crate::live_result::{Changes, PositionedRow};

/// A message of any kind: parsed in one pass, in any field order.
#[derive(Debug, Deserialize)]
pub(crate) struct Frame {
    pub(crate) op: Op,
    pub(crate) id: Option<String>,
    pub(crate) seq: Option<Seq>,
    pub(crate) timeline: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) from: Option<Seq>,
    pub(crate) to: Option<Seq>,
    #[serde(default)]
    pub(crate) columns: Vec<AnyColumn>,
    #[serde(default)]
    pub(crate) key: Vec<String>,
    #[serde(default)]
    pub(crate) order: Vec<OrderTerm>,
    #[serde(default)]
    pub(crate) top_n: bool,
    #[serde(default)]
    pub(crate) rows: Vec<CellRow>,
    #[serde(default)]
    pub(crate) more: bool,
    #[serde(default)]
    pub(crate) history_changed: bool,
    pub(crate) plan: Option<Plan>,
    pub(crate) checksum: Option<Checksum>,
    #[serde(default)]
    pub(crate) changes: Vec<Change>,
    pub(crate) result: Option<Box<RawValue>>,
    pub(crate) results: Option<Vec<OneResult>>,
    #[serde(default)]
    pub(crate) duplicate: bool,
    pub(crate) code: Option<Code>,
    pub(crate) detail: Option<String>,
    pub(crate) hint: Option<String>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
    #[serde(default)]
    batch_position: Option<usize>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Hello,
    Snapshot,
    Delta,
    Rerun,
    Progress,
    Result,
    Rows,
    Explanation,
    Pong,
    Error,
    /// From a newer server; ignored.
    #[serde(other)]
    Unknown,
}

/// Maximum bytes of a text of a server in an error.
const TEXT_BYTES: usize = 2_000;

/// Returns a text that fits in a message: a server decides how long its texts are.
pub(crate) fn cut(text: &str) -> String {
    if text.len() <= TEXT_BYTES {
        return text.to_owned();
    }
    let kept = &text[..text.floor_char_boundary(TEXT_BYTES)];
    format!("{kept} … ({} more bytes)", text.len() - kept.len())
}

impl Frame {
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal {
            code: self.code.unwrap_or(Code::Internal),
            detail: self
                .detail
                .as_deref()
                .map_or_else(|| "the server gives no reason".to_owned(), cut),
            hint: self.hint.as_deref().map(cut),
            retry_after_ms: self.retry_after_ms,
            batch_position: self.batch_position,
        }
    }

    /// The parts of a snapshot other than its rows.
    pub(crate) fn take_info(&mut self) -> SubscriptionInfo {
        let columns = std::mem::take(&mut self.columns);
        let key = std::mem::take(&mut self.key);
        let order = std::mem::take(&mut self.order);
        subscription_info(columns, key, order, self.top_n, self.plan.take())
    }

    pub(crate) fn take_rows(&mut self) -> impl Iterator<Item = Row> {
        std::mem::take(&mut self.rows).into_iter().map(|row| row.0)
    }
}

fn subscription_info(
    columns: Vec<AnyColumn>,
    key: Vec<String>,
    order: Vec<OrderTerm>,
    top_n: bool,
    plan: Option<Plan>,
) -> SubscriptionInfo {
    let columns = columns.into_iter().map(AnyColumn::into_column).collect();
    // An older server sends no plan.
    SubscriptionInfo { shape: Shape { columns, key, order, top_n }, plan: plan.unwrap_or_default() }
}

/// A column of a snapshot, or only its name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum AnyColumn {
    Whole(Column),
    Name(String),
}

impl AnyColumn {
    pub(crate) fn into_column(self) -> Column {
        match self {
            AnyColumn::Whole(column) => column,
            AnyColumn::Name(name) => Column { name, kind: String::new(), hidden: false },
        }
    }
}

/// The result of one call of a batch.
#[derive(Debug, Deserialize)]
pub(crate) struct OneResult {
    pub(crate) seq: Seq,
    pub(crate) result: Option<Box<RawValue>>,
}

/// The changes of one commit in one result.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Change {
    pub(crate) id: String,
    #[serde(default)]
    deletes: Vec<DeltaItem>,
    #[serde(default)]
    inserts: Vec<DeltaItem>,
    #[serde(default)]
    updates: Vec<DeltaItem>,
    #[serde(default)]
    pub(crate) stale: bool,
    pub(crate) checksum: Option<Checksum>,
    columns: Option<Vec<AnyColumn>>,
    #[serde(default)]
    key: Vec<String>,
    #[serde(default)]
    order: Vec<OrderTerm>,
    #[serde(default)]
    top_n: bool,
    plan: Option<Plan>,
}

/// A row or key; in a top-N result, a position, and the row there.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum DeltaItem {
    Row(CellRow),
    Placed {
        at: usize,
        #[serde(default)]
        row: Option<CellRow>,
    },
}

impl Change {
    /// Converts it to an event that leads up to a seq.
    pub(crate) fn into_event(mut self, to: Seq) -> Event {
        let checksum = self.checksum;
        let info = self.take_info();
        Event::Delta { to, changes: self.into_changes(), checksum, info }
    }

    /// The parts of the answer to a resume other than rows.
    fn take_info(&mut self) -> Option<Arc<SubscriptionInfo>> {
        let columns = self.columns.take()?;
        let key = std::mem::take(&mut self.key);
        let order = std::mem::take(&mut self.order);
        Some(Arc::new(subscription_info(columns, key, order, self.top_n, self.plan.take())))
    }

    pub(crate) fn into_changes(self) -> Changes {
        let mut changes = Changes::default();
        for item in self.deletes {
            match item {
                DeltaItem::Row(key) => changes.deletes.push(key.0),
                DeltaItem::Placed { at, .. } => changes.top_n.deletes.push(at),
            }
        }
        let Changes { inserts, updates, top_n, .. } = &mut changes;
        let lists = [
            (self.inserts, inserts, &mut top_n.inserts),
            (self.updates, updates, &mut top_n.updates),
        ];
        for (items, rows, placed) in lists {
            for item in items {
                match item {
                    DeltaItem::Row(row) => rows.push(row.0),
                    DeltaItem::Placed { at, row } => {
                        placed.push(PositionedRow {
                            at,
                            row: row.map_or_else(|| [].into(), |row| row.0),
                        });
                    }
                }
            }
        }
        changes
    }
}

/// A row of cells.
#[derive(Debug)]
pub(crate) struct CellRow(pub(crate) Row);

impl<'de> Deserialize<'de> for CellRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CellRow, D::Error> {
        let cells = Vec::<Cell>::deserialize(deserializer)?;
        Ok(CellRow(cells.into_iter().map(|cell| cell.0).collect::<Arc<[Value]>>()))
    }
}

/// A cell: the inverse of the `Serialize` of [`Value`], without a tree in between.
struct Cell(Value);

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cell, D::Error> {
        deserializer.deserialize_any(CellVisitor).map(Cell)
    }
}

struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a cell")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, yes: bool) -> Result<Value, E> {
        Ok(Value::Integer(i64::from(yes)))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(Value::Integer(n))
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Value, E> {
        i64::try_from(n).map(Value::Integer).map_err(|_| E::custom("an integer beyond 64 bits"))
    }

    fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
        Ok(Value::Real(x))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, value)) = map.next_entry::<String, JsonValue>()? {
            object.insert(key, value);
        }
        Value::from_json(&JsonValue::Object(object)).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use abide_schema::wire;

    use super::*;

    fn read(message: &wire::ServerMessage) -> Frame {
        serde_json::from_str(&message.to_text()).expect("the form of the wire is read")
    }

    #[test]
    fn cells_round_trip_exactly() {
        let cells = [
            Value::Null,
            Value::Integer(i64::MIN),
            Value::Integer((1 << 53) + 1),
            Value::Real(1.0),
            Value::Real(-0.0),
            Value::Real(5e-324),
            Value::Real(f64::INFINITY),
            Value::from("\u{0}\"é"),
            Value::Blob(vec![0, 255]),
        ];
        let rows = vec![cells.iter().map(Value::to_json).collect()];
        let message =
            wire::ServerMessage::Rows { id: "1".to_owned(), seq: Seq(1), columns: vec![], rows };
        let mut frame = read(&message);
        let row = frame.take_rows().next().expect("there is a row");
        assert_eq!(format!("{row:?}"), format!("{cells:?}"));
    }

    #[test]
    fn every_wire_message_is_parsed() {
        let change = wire::Change {
            id: "q1".to_owned(),
            deletes: vec![serde_json::json!(["a"])],
            ..wire::Change::default()
        };
        let delta = wire::ServerMessage::Delta { from: Seq(1), to: Seq(2), changes: vec![change] };
        let mut frame = read(&delta);
        assert_eq!((frame.op, frame.from, frame.to), (Op::Delta, Some(Seq(1)), Some(Seq(2))));
        let changes = frame.changes.remove(0).into_changes();
        assert_eq!(changes.deletes, [Row::from([Value::from("a")])]);

        let refusal = Refusal::new(Code::BadSql, "no").hint("yes");
        let frame = read(&wire::ServerMessage::error(Some("q1".to_owned()), &refusal));
        assert_eq!(frame.refusal(), refusal);
        assert_eq!(read(&wire::ServerMessage::Pong).op, Op::Pong);
    }

    /// A server that is none could fill the log and the memory of a program with one error.
    #[test]
    fn the_texts_of_a_refusal_fit_in_a_message() {
        let long = "é".repeat(1 << 20);
        let refusal = Refusal::new(Code::BadSql, long.as_str()).hint(long.as_str());
        let refusal = read(&wire::ServerMessage::error(None, &refusal)).refusal();
        assert!(refusal.to_string().len() < 2 * TEXT_BYTES + 100, "{}", refusal.to_string().len());
        assert!(refusal.detail.ends_with("é … (2095152 more bytes)"), "{refusal}");
    }

    #[test]
    fn top_n_positions_are_parsed() {
        let text = r#"{"op":"delta","from":1,"to":2,"changes":[{"id":"q",
            "deletes":[{"at":3}],"inserts":[{"at":0,"row":[1]}],"updates":[]}]}"#;
        let mut frame: Frame = serde_json::from_str(text).expect("it is read");
        let changes = frame.changes.remove(0).into_changes();
        assert_eq!(changes.top_n.deletes, [3]);
        assert_eq!(
            changes.top_n.inserts,
            [PositionedRow { at: 0, row: [Value::Integer(1)].into() }]
        );
    }

    #[test]
    fn unknown_messages_of_a_newer_server_are_ignored() {
        let frame: Frame = serde_json::from_str(r#"{"op":"news","of":["tomorrow"]}"#).expect("ok");
        assert_eq!(frame.op, Op::Unknown);
    }
}
