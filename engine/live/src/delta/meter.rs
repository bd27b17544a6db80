//! The cost of each template's live queries to commits, in counted work, and which templates exceed
//! their budget.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use abide_schema::share::{ShareKey, Shares};

/// Work done for live queries. It is counted, not timed, so it is the same on every machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Statements run.
    pub statements: u64,
    /// Steps of SQLite's virtual machine, about ten for each visited row.
    pub steps: u64,
    /// Steps for rows that a restricted caller sees. They do not depend on hidden rows.
    pub visible_steps: u64,
}

impl Cost {
    /// Returns the work of one statement.
    #[must_use]
    pub fn from_steps(steps: u64, visible_steps: u64) -> Cost {
        Cost { statements: 1, steps, visible_steps }
    }

    /// Adds other work.
    pub(crate) fn add(&mut self, other: Cost) {
        self.statements += other.statements;
        self.steps += other.steps;
        self.visible_steps += other.visible_steps;
    }
}

impl std::ops::Sub for Cost {
    type Output = Cost;

    fn sub(self, earlier: Cost) -> Cost {
        Cost {
            statements: self.statements - earlier.statements,
            steps: self.steps - earlier.steps,
            visible_steps: self.visible_steps - earlier.visible_steps,
        }
    }
}

/// Which steps of a binding the budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedSteps {
    /// All.
    All,
    /// Those for rows that the restricted caller sees. Steps over hidden rows must not decide what
    /// it receives: by its own rows, a caller can come as close to a limit as it likes, so that a
    /// single hidden row would exceed it.
    Visible,
}

impl CountedSteps {
    /// Returns the counted steps of this work.
    pub(crate) fn count(self, cost: Cost) -> u64 {
        match self {
            CountedSteps::All => cost.steps,
            CountedSteps::Visible => cost.visible_steps,
        }
    }
}

/// The limits of the cost of live queries for a commit. All except `time` are in steps of SQLite's
/// virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The average cost of one binding's delta, over the last deltas of a template.
    pub average: u64,
    /// The maximum of a single delta. It is interrupted there.
    pub max: u64,
    /// The maximum of all deltas of one commit for the operator. Each tenant has a quarter, however
    /// many there are. Beyond it no further delta is computed for that payer.
    pub commit: u64,
    /// What each statement counts in `commit` in addition to its steps, for its start.
    pub statement: u64,
    /// The maximum CPU time of a single delta, and of all deltas of one tenant in a commit. It
    /// covers costs that are not counted. Half of it is the maximum average of a template of a
    /// restricted caller.
    pub time: Duration,
    /// The CPU time of all deltas of a commit after which no further one begins.
    pub commit_time: Duration,
    /// The CPU time that a reader may take to fill the accumulators of a group.
    pub fill_time: Duration,
}

impl Budget {
    /// No limits. Tests take `time` from it: CPU time differs between machines, steps do not.
    pub const UNLIMITED: Budget = Budget {
        average: u64::MAX,
        max: u64::MAX,
        commit: u64::MAX,
        statement: 0,
        time: Duration::MAX,
        commit_time: Duration::MAX,
        fill_time: Duration::MAX,
    };

    /// The part of the limits on steps that bounds restricted callers. Their counted steps take
    /// less than half of the CPU time that they may use. So CPU time, to which hidden rows add,
    /// decides only if there are several times as many hidden rows on the way as visible ones.
    const VISIBLE_PART: u64 = 4;

    /// Returns the limits for bindings whose steps are counted so.
    pub(crate) fn counting(self, counted: CountedSteps) -> Budget {
        match counted {
            CountedSteps::All => self,
            CountedSteps::Visible => Budget {
                max: self.max / Budget::VISIBLE_PART,
                commit: self.commit / Budget::VISIBLE_PART,
                ..self
            },
        }
    }

    /// `true` if the deltas of one payer have used up its share of a commit. What others spend
    /// does not matter: a tenant would notice their hidden rows.
    pub(crate) fn is_over(&self, payer: &ShareKey, spent: PayerCost) -> bool {
        if *payer == ShareKey::Operator {
            return spent.steps >= self.commit;
        }
        let share = usize::try_from(self.commit).map_or(u64::MAX, |all| Shares::share(all) as u64);
        spent.steps >= share || spent.time >= self.time
    }

    /// Returns the limits of the views of all restricted callers, of their deltas and of the
    /// lookups that find them: half of a commit's. A single view may take all of it: with the bound
    /// of a single query, rows of a commit that a caller does not see would decide about its
    /// queries.
    pub(crate) fn for_views(self) -> Budget {
        let commit = self.commit / 2;
        Budget { max: self.max.max(commit), commit, ..self }
    }

    /// Returns the steps of the budget of a commit that this work takes. A hidden row can cause
    /// another statement, so a delta of a restricted caller counts as one.
    pub(crate) fn charge(&self, cost: Cost, counted: CountedSteps) -> u64 {
        let statements = match counted {
            CountedSteps::All => cost.statements,
            CountedSteps::Visible => cost.statements.min(1),
        };
        counted.count(cost).saturating_add(statements.saturating_mul(self.statement))
    }
}

/// What the deltas of one payer have cost in a commit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PayerCost {
    pub(crate) steps: u64,
    pub(crate) time: Duration,
}

/// The work of one template so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateWork {
    /// The template, as its snapshot's SQL.
    pub sql: Arc<str>,
    /// The number of attached bindings.
    pub bindings: usize,
    /// The number of requested deltas.
    pub deltas: u64,
    /// The number of deltas not computed because of the budget.
    pub over_budget: u64,
    /// The cost of the deltas.
    pub spent: Cost,
}

/// The cost of one delta.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeteredDelta {
    pub(crate) spent: Cost,
    pub(crate) counted: CountedSteps,
    /// CPU time.
    pub(crate) time: Duration,
}

/// Deltas in the moving averages.
const AVERAGED_DELTAS: u32 = 8;

/// Deltas within the budget after which earlier excesses are forgotten.
const CALM: u64 = 1 << 10;
/// The longest pause, in deltas.
const PAUSE: u64 = 1 << 16;

/// The cost of one template.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) work: TemplateWork,
    /// Decaying average of the counted steps of a delta.
    average: u64,
    /// Decaying average of the CPU time of a delta, if that counts.
    average_time: Duration,
    /// Deltas until another attempt, while the template is over budget.
    paused: u64,
    /// The length of the next pause.
    pause: u64,
    /// Deltas within the budget since the last pause.
    calm: u64,
}

impl Meter {
    /// Nothing spent yet.
    pub(crate) fn new(sql: &Arc<str>) -> Meter {
        let spent = Cost::default();
        let sql = Arc::clone(sql);
        let work = TemplateWork { sql, bindings: 0, deltas: 0, over_budget: 0, spent };
        Meter { work, average: 0, average_time: Duration::ZERO, paused: 0, pause: 1, calm: 0 }
    }

    /// `true` if the next delta may be computed. Each refusal counts down to another attempt,
    /// because a one-time cost (filling accumulators, a span of many changes) need not recur.
    pub(crate) fn may_run(&mut self) -> bool {
        self.work.deltas += 1;
        if self.paused == 0 {
            return true;
        }
        self.paused -= 1;
        self.work.over_budget += 1;
        false
    }

    /// Records the cost of a delta. `exceeded` if it was interrupted.
    pub(crate) fn spend(&mut self, delta: MeteredDelta, exceeded: bool, budget: Option<Budget>) {
        self.work.spent.add(delta.spent);
        let steps = delta.counted.count(delta.spent);
        self.average =
            (self.average * u64::from(AVERAGED_DELTAS - 1) + steps) / u64::from(AVERAGED_DELTAS);
        if delta.counted == CountedSteps::Visible {
            let before = self.average_time.saturating_mul(AVERAGED_DELTAS - 1);
            self.average_time = before.saturating_add(delta.time) / AVERAGED_DELTAS;
        }
        let Some(budget) = budget else { return };
        if exceeded {
            self.work.over_budget += 1;
        }
        let is_slow = self.average_time > budget.time / 2;
        if exceeded || is_slow || self.average > budget.average {
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(PAUSE);
            self.average = 0;
            self.average_time = Duration::ZERO;
            self.calm = 0;
            return;
        }
        self.calm += 1;
        if self.calm > CALM {
            self.pause = 1;
        }
    }
}

/// The meters of all attached templates, one for each payer: the cost of a query depends on the
/// rows that its caller sees.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    meters: Vec<Option<(ShareKey, Meter)>>,
    places: BTreeMap<(Arc<str>, ShareKey), usize>,
    free: Vec<usize>,
}

impl Meters {
    /// Adds a binding of a template. Returns the index of its meter.
    pub(crate) fn enter(&mut self, sql: &Arc<str>, payer: &ShareKey) -> usize {
        let meters = &mut self.meters;
        let free = &mut self.free;
        let at = *self.places.entry((Arc::clone(sql), payer.clone())).or_insert_with(|| {
            let meter = Some((payer.clone(), Meter::new(sql)));
            match free.pop() {
                Some(at) => {
                    meters[at] = meter;
                    at
                }
                None => {
                    meters.push(meter);
                    meters.len() - 1
                }
            }
        });
        self.meter(at).work.bindings += 1;
        at
    }

    /// Removes a binding.
    pub(crate) fn leave(&mut self, at: usize) {
        let (payer, meter) = self.meters[at].as_mut().expect("the meter of an attached binding");
        meter.work.bindings -= 1;
        if meter.work.bindings == 0 {
            self.places.remove(&(Arc::clone(&meter.work.sql), payer.clone()));
            self.meters[at] = None;
            self.free.push(at);
        }
    }

    /// Returns the meter of an attached binding.
    pub(crate) fn meter(&mut self, at: usize) -> &mut Meter {
        &mut self.meters[at].as_mut().expect("the meter of an attached binding").1
    }

    /// Records work for all bindings of a template together, for one of their payers.
    pub(crate) fn spend_on(&mut self, sql: &Arc<str>, payer: &ShareKey, spent: Cost) {
        if let Some(at) = self.places.get(&(Arc::clone(sql), payer.clone())).copied() {
            self.meter(at).work.spent.add(spent);
        }
    }

    /// Returns the work of all templates, the most expensive first.
    pub(crate) fn work_by_template(&self) -> Vec<TemplateWork> {
        let mut by_template: HashMap<Arc<str>, TemplateWork> = HashMap::new();
        for (_, Meter { work, .. }) in self.meters.iter().flatten() {
            match by_template.entry(Arc::clone(&work.sql)) {
                Entry::Vacant(entry) => drop(entry.insert(work.clone())),
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.bindings += work.bindings;
                    known.deltas += work.deltas;
                    known.over_budget += work.over_budget;
                    known.spent.add(work.spent);
                }
            }
        }
        let mut all: Vec<TemplateWork> = by_template.into_values().collect();
        all.sort_by_key(|work| std::cmp::Reverse(work.spent.steps));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Option<Budget> = Some(Budget { average: 100, max: 1_000, ..Budget::UNLIMITED });

    fn steps(steps: u64) -> MeteredDelta {
        let spent = Cost::from_steps(steps, 0);
        MeteredDelta { spent, counted: CountedSteps::All, time: Duration::ZERO }
    }

    #[test]
    fn an_expensive_template_is_tried_less_and_less_often() {
        let mut meter = Meter::new(&Arc::from("SELECT 1"));
        let mut attempts = 0;
        for _ in 0..1_000 {
            if meter.may_run() {
                attempts += 1;
                meter.spend(steps(1_000), true, BUDGET);
            }
        }
        assert_eq!(attempts, 10);
        assert_eq!(meter.work.over_budget, 1_000);
    }

    #[test]
    fn one_expensive_delta_among_cheap_ones_does_not_stop_a_template() {
        let mut meter = Meter::new(&Arc::from("SELECT 1"));
        for at in 0..1_000 {
            assert!(meter.may_run());
            meter.spend(steps(if at % 100 == 0 { 700 } else { 10 }), false, BUDGET);
        }
        assert_eq!(meter.work.over_budget, 0);
    }
}
