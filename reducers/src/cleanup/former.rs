//! Cleanups by the rules of version 1, for replays of old events: each session has its own row and steps.

use std::collections::VecDeque;

use abide_schema::{Abort, Context, limits};

use super::rows::Room;
use super::{CleanupKind, CleanupStep, Task};
use crate::tool_call::cancel;
use crate::{session, timer};

pub(super) fn take_steps(ctx: &mut Context<'_>, task: Task) -> Result<CleanupStep, Abort> {
    let mut step = Step { left: limits::CLEANUP_ROWS, tasks: VecDeque::from([task]) };
    ctx.without_policies(|ctx| {
        while step.left > 0
            && let Some(task) = step.tasks.pop_front()
        {
            if let Some(rest) = step.work_on(ctx, task)? {
                step.tasks.push_front(rest);
            }
        }
        let rows = limits::CLEANUP_ROWS - step.left;
        let left = step.tasks.len();
        // There were no columns of runs.
        let tasks = step.tasks.into_iter().map(|task| Task { run_id: None, ..task });
        tasks.into_iter().try_for_each(|task| super::insert_task(ctx, task))?;
        Ok(CleanupStep { rows, left })
    })
}

/// One step: its remaining row budget, and the tasks in order.
struct Step {
    left: usize,
    tasks: VecDeque<Task>,
}

impl Step {
    /// Processes a task within the budget, and returns the remaining task.
    fn work_on(&mut self, ctx: &mut Context<'_>, mut task: Task) -> Result<Option<Task>, Abort> {
        self.left -= 1;
        // Only the number of rows was limited.
        let mut room = Room { rows: self.left, bytes: usize::MAX };
        cancel::some_of_session(ctx, &task.session_id, task.up_to, &mut room)?;
        if task.kind != CleanupKind::Abort {
            timer::cancel_some_of_session(ctx, &task.session_id, &mut room)?;
        }
        self.left = room.rows;
        if task.kind == CleanupKind::Cancel && self.left > 0 {
            let after = task.after.as_deref().unwrap_or_default();
            let children = session::made_for(ctx, &task.session_id, after, self.left)?;
            self.left -= children.len();
            for child in children {
                task.after = Some(child.id.clone());
                if child.cancel_requested_at.is_none() && !child.status.is_terminal() {
                    self.tasks.push_back(Task::cancel(&child.id, task.reason.as_deref()));
                    session::mark_cancelled(ctx, child, task.reason.as_deref())?;
                }
            }
        }
        Ok((self.left == 0).then_some(task))
    }
}
