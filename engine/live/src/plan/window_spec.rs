//! A resolved window: its partition, its order and its frame, and how a function depends on them.

use sqlite3_parser::ast::{FrameExclude, FrameMode};

use crate::plan::fragment::Fragment;

/// A window, resolved.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowSpec {
    pub(crate) partition: Vec<Fragment>,
    /// The order terms, each with its direction.
    pub(crate) order: Vec<(Fragment, String)>,
    pub(crate) frame: Option<FrameSpec>,
}

/// A frame: the rows around the current one that a function reads.
#[derive(Clone, Debug)]
pub(crate) struct FrameSpec {
    pub(crate) mode: FrameMode,
    pub(crate) start: FrameEdge,
    pub(crate) end: FrameEdge,
    pub(crate) exclude: FrameExclude,
}

#[derive(Clone, Debug)]
pub(crate) enum FrameEdge {
    First,
    Preceding(Fragment),
    Current,
    Following(Fragment),
    Last,
}

/// The part of a window that a function depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameDependency {
    /// The peers of a row.
    Peers,
    /// The rows one by one, regardless of the frame.
    Rows,
    /// The frame as a set.
    Set,
    /// The frame in order.
    Sequence,
    /// The first row of the frame.
    First,
    /// The last row of the frame.
    Last,
}

impl WindowSpec {
    /// `true` if a partition has no peers.
    pub(crate) fn orders_by(&self, keys: &[Fragment]) -> bool {
        keys.iter().all(|key| self.has(key))
    }

    fn has(&self, key: &Fragment) -> bool {
        self.partition.contains(key) || self.order.iter().any(|(value, _)| value == key)
    }

    /// Returns the window with these as the last order terms.
    pub(crate) fn ordered_by(mut self, keys: &[Fragment]) -> WindowSpec {
        for key in keys {
            if !self.has(key) {
                self.order.push((key.clone(), String::new()));
            }
        }
        self
    }

    /// `true` if the frame of every row is its whole partition.
    pub(crate) fn frame_is_whole(&self) -> bool {
        let all_peers = self.order.is_empty();
        let Some(frame) = &self.frame else { return all_peers };
        let by_peers = all_peers && frame.mode != FrameMode::Rows;
        let from_first = match frame.start {
            FrameEdge::First => true,
            FrameEdge::Current => by_peers,
            _ => false,
        };
        let to_last = match frame.end {
            FrameEdge::Last => true,
            FrameEdge::Current => by_peers,
            _ => false,
        };
        from_first && to_last && frame.exclude == FrameExclude::NoOthers
    }

    /// `true` if the row that a function returns is the first or the last of the partition.
    pub(crate) fn takes_an_end(&self, frame_dependency: FrameDependency) -> bool {
        let Some(frame) = &self.frame else { return frame_dependency == FrameDependency::First };
        let bounds = match frame_dependency {
            FrameDependency::First => {
                matches!(frame.start, FrameEdge::First)
                    && matches!(
                        frame.end,
                        FrameEdge::Current | FrameEdge::Following(_) | FrameEdge::Last
                    )
            }
            FrameDependency::Last => {
                matches!(
                    frame.start,
                    FrameEdge::First | FrameEdge::Preceding(_) | FrameEdge::Current
                ) && matches!(frame.end, FrameEdge::Last)
            }
            _ => false,
        };
        bounds && frame.exclude == FrameExclude::NoOthers
    }

    pub(crate) fn excludes_peers(&self) -> bool {
        let exclude = self.frame.as_ref().map(|frame| &frame.exclude);
        matches!(exclude, Some(FrameExclude::Group | FrameExclude::Ties))
    }

    pub(crate) fn write(&self, out: &mut Fragment) {
        out.push_text("OVER (");
        for (at, by) in self.partition.iter().enumerate() {
            out.push_text(if at > 0 { "," } else { "PARTITION BY" });
            out.push(by);
        }
        out.push(&order_by(&self.order));
        if let Some(frame) = &self.frame {
            frame.write(out);
        }
        out.push_text(")");
    }
}

impl FrameSpec {
    pub(crate) fn whole() -> FrameSpec {
        let start = FrameEdge::First;
        let end = FrameEdge::Last;
        let exclude = FrameExclude::NoOthers;
        FrameSpec { mode: FrameMode::Rows, start, end, exclude }
    }

    pub(crate) fn write(&self, out: &mut Fragment) {
        out.push_text(match self.mode {
            FrameMode::Groups => "GROUPS BETWEEN",
            FrameMode::Range => "RANGE BETWEEN",
            FrameMode::Rows => "ROWS BETWEEN",
        });
        self.start.write(out);
        out.push_text("AND");
        self.end.write(out);
        out.push_text(match self.exclude {
            FrameExclude::NoOthers => "",
            FrameExclude::CurrentRow => "EXCLUDE CURRENT ROW",
            FrameExclude::Group => "EXCLUDE GROUP",
            FrameExclude::Ties => "EXCLUDE TIES",
        });
    }
}

impl FrameEdge {
    pub(crate) fn write(&self, out: &mut Fragment) {
        let (offset, direction) = match self {
            FrameEdge::First => (None, "UNBOUNDED PRECEDING"),
            FrameEdge::Preceding(offset) => (Some(offset), "PRECEDING"),
            FrameEdge::Current => (None, "CURRENT ROW"),
            FrameEdge::Following(offset) => (Some(offset), "FOLLOWING"),
            FrameEdge::Last => (None, "UNBOUNDED FOLLOWING"),
        };
        if let Some(offset) = offset {
            out.push(offset);
        }
        out.push_text(direction);
    }
}

/// ORDER BY these terms.
pub(crate) fn order_by(terms: &[(Fragment, String)]) -> Fragment {
    let mut out = Fragment::new();
    for (at, (value, direction)) in terms.iter().enumerate() {
        out.push_text(if at > 0 { "," } else { "ORDER BY" });
        out.push(value);
        out.push_text(direction);
    }
    out
}
