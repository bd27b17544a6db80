//! From a text and parameters to a binding. A text is parsed once, however many bind it.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use abide_schema::{Code, Refusal, Value, limits};
use serde_json::{Map, Value as JsonValue};
use sqlite3_parser::ast::{Cmd, Stmt};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use crate::catalog::Catalog;
use crate::lex;
use crate::lower::{Lower, Slot};
use crate::select::Query;
use crate::template::{Binding, Template};
use crate::viewer::Viewer;

/// Entries of one generation of a cache. Two generations are kept, so that what is in use survives
/// however many texts pass by that are bound once.
const GENERATION: usize = 1_024;

/// Understands queries. Shared by all threads.
#[derive(Debug)]
pub struct Planner {
    catalog: Arc<Catalog>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    texts: Cache<String, Arc<Parsed>>,
    /// Of callers whose sight is bounded: by outlook, way of reading and text.
    bounded: Cache<String, Arc<Parsed>>,
    templates: Cache<String, Arc<Template>>,
}

/// A text as understood: its template and what fills the template's parameters.
#[derive(Debug)]
struct Parsed {
    template: Arc<Template>,
    slots: Vec<Slot>,
    /// The caller's parameters, also those in a part of the text that nothing shows.
    names: BTreeSet<String>,
    /// Whether it has a LIKE or GLOB.
    matches: bool,
}

/// A text of a caller whose sight is bounded.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    viewer: &'a Viewer,
    /// Whether it is run once.
    once: bool,
}

impl Bounded<'_> {
    /// Where a text is remembered.
    fn place(&self, sql: &str) -> String {
        format!("{}\0{}\0{sql}", self.viewer.outlook.number, u8::from(self.once))
    }
}

impl Planner {
    /// For the tables and views of a catalog.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>) -> Planner {
        Planner { catalog, known: Mutex::default() }
    }

    /// A query with its parameters, by name without the sigil or by number.
    ///
    /// # Errors
    /// `bad_sql` for what is no SELECT of known tables and columns, `unsupported_sql` for what cannot
    /// be live, `limit_exceeded` for what is too long or nests too deeply, `bad_arguments` for
    /// parameters that are missing, superfluous or no values.
    pub fn bind(&self, sql: &str, params: &Map<String, JsonValue>) -> Result<Binding, Refusal> {
        let parsed = self.parsed(sql)?;
        let values = parsed.values(params, None)?;
        Ok(Binding::new(Arc::clone(&parsed.template), values, None))
    }

    /// The same for a caller whose sight is bounded: it sees what its outlook shows, and nothing else
    /// is there.
    ///
    /// # Errors
    /// As [`Planner::bind`].
    pub fn bind_within(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        viewer: &Viewer,
    ) -> Result<Binding, Refusal> {
        self.bind_bounded(sql, params, Bounded { viewer, once: false })
    }

    /// The same of a query that is run once: [`Binding::snapshot_sql`], and nothing else of the binding.
    ///
    /// # Errors
    /// As [`Planner::bind`]; fewer queries are `unsupported_sql`.
    pub fn bind_once(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        viewer: &Viewer,
    ) -> Result<Binding, Refusal> {
        let bound = self.bind_bounded(sql, params, Bounded { viewer, once: true });
        bound.map_err(|mut refusal| {
            if refusal.code == Code::UnsupportedSql {
                let told = "cannot be asked by a caller whose sight is bounded";
                refusal.detail = refusal.detail.replace("cannot be live", told);
                refusal.hint = None;
            }
            refusal
        })
    }

    /// The same of a text that was understood before, which takes no time: for threads that may not be held up.
    ///
    /// # Errors
    /// As [`Planner::bind`].
    pub fn bind_known(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        viewer: Option<&Viewer>,
    ) -> Option<Result<Binding, Refusal>> {
        let parsed = match viewer {
            Some(viewer) => {
                let place = Bounded { viewer, once: false }.place(sql);
                self.lock().bounded.get(&place)
            }
            None => self.lock().texts.get(sql),
        }?;
        let asker = viewer.map(Viewer::asker);
        let values = parsed.values(params, viewer);
        Some(values.map(|values| Binding::new(Arc::clone(&parsed.template), values, asker)))
    }

    fn bind_bounded(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        bounded: Bounded,
    ) -> Result<Binding, Refusal> {
        let parsed = self.parsed_bounded(sql, bounded)?;
        let values = parsed.values(params, Some(bounded.viewer))?;
        let asker = bounded.viewer.asker();
        Ok(Binding::new(Arc::clone(&parsed.template), values, Some(asker)))
    }

    fn parsed_bounded(&self, sql: &str, bounded: Bounded) -> Result<Arc<Parsed>, Refusal> {
        let place = bounded.place(sql);
        let known = self.lock().bounded.get(&place);
        if let Some(known) = known {
            return Ok(known);
        }
        let parsed = self.understand(sql, Some(bounded))?;
        self.lock().bounded.insert(place, Arc::clone(&parsed));
        Ok(parsed)
    }

    /// The same for whoever only wants to know of it: parameters that are left out are NULL.
    ///
    /// # Errors
    /// As [`Planner::bind`].
    pub fn bind_some(
        &self,
        sql: &str,
        params: &Map<String, JsonValue>,
        viewer: Option<&Viewer>,
    ) -> Result<Binding, Refusal> {
        let parsed = match viewer {
            Some(viewer) => self.parsed_bounded(sql, Bounded { viewer, once: false })?,
            None => self.parsed(sql)?,
        };
        let mut all = params.clone();
        for name in &parsed.names {
            all.entry(name).or_insert(JsonValue::Null);
        }
        let values = parsed.values(&all, viewer)?;
        let asker = viewer.map(Viewer::asker);
        Ok(Binding::new(Arc::clone(&parsed.template), values, asker))
    }

    fn parsed(&self, sql: &str) -> Result<Arc<Parsed>, Refusal> {
        if let Some(known) = self.lock().texts.get(sql) {
            return Ok(known);
        }
        let parsed = self.understand(sql, None)?;
        self.lock().texts.insert(sql.to_owned(), Arc::clone(&parsed));
        Ok(parsed)
    }

    fn understand(&self, sql: &str, bounded: Option<Bounded>) -> Result<Arc<Parsed>, Refusal> {
        let query = parse(&self.catalog, sql, bounded)?;
        let names = query.slots.iter().filter_map(|slot| match slot {
            Slot::Caller(name) => Some(name.clone()),
            Slot::Literal(_) | Slot::Viewer(_) => None,
        });
        let names = names.collect();
        let (template, slots) = Template::compile(&self.catalog, query)?;
        let mut known = self.lock();
        let template = match known.templates.get(&**template.text()) {
            Some(template) => template,
            None => {
                let template = Arc::new(template);
                known.templates.insert(template.text().to_string(), Arc::clone(&template));
                template
            }
        };
        let matches = ["LIKE", "GLOB"].iter().any(|word| template.text().contains(word));
        Ok(Arc::new(Parsed { template, slots, names, matches }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        // A panic elsewhere cannot have left a cache of immutable values half written.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A text as a resolved query.
fn parse(catalog: &Catalog, sql: &str, bounded: Option<Bounded>) -> Result<Query, Refusal> {
    let written = lex::columns_as_written(sql)?;
    let (numbered, parameters) = lex::number_parameters(sql)?;
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, numbered.as_bytes());
    let command = parser.next().map_err(|error| lex::refusal(sql, &error))?;
    match &command {
        Some(Cmd::Stmt(Stmt::Select(select))) => {
            let mut lower = Lower::new(catalog);
            if let Some(Bounded { viewer, once }) = bounded {
                (lower.viewer, lower.once) = (Some(viewer), once);
            }
            lower.declare(&parameters);
            Query::resolve(lower, select, &written)
        }
        Some(_) => Err(no_select(bounded.is_some_and(|bounded| bounded.once))),
        None => Err(Refusal::new(Code::BadSql, "the statement is empty").hint("send one SELECT")),
    }
}

fn no_select(once: bool) -> Refusal {
    if once {
        return Refusal::new(Code::BadSql, "the statement does more than read")
            .hint("one SELECT, VALUES or WITH; to change something, call a reducer");
    }
    Refusal::new(Code::BadSql, "only a SELECT can be watched")
        .hint("change data through a reducer:  POST /v1/call/{reducer}")
}

impl Parsed {
    fn values(
        &self,
        params: &Map<String, JsonValue>,
        viewer: Option<&Viewer>,
    ) -> Result<Vec<Value>, Refusal> {
        let bad = |detail: String| Refusal::new(Code::BadArguments, detail);
        for name in &self.names {
            let json = params.get(name).ok_or_else(|| {
                bad(format!("parameter {name} is missing"))
                    .hint(format!("pass it in params: {{\"{name}\": …}}"))
            })?;
            Value::from_json(json)
                .map_err(|what| bad(format!("parameter {name} is {what}, which is no value")))?;
        }
        if let Some(name) = params.keys().find(|name| !self.names.contains(*name)) {
            return Err(bad(format!("the query has no parameter {name}"))
                .hint("leave the sigil out: sid for :sid, 1 for ?1"));
        }
        let value = |slot: &Slot| match slot {
            Slot::Literal(value) => value.clone(),
            Slot::Caller(name) => Value::from_json(&params[name]).expect("it was just read"),
            Slot::Viewer(name) => {
                viewer.expect("only a bounded text names a viewer's values").value(name)
            }
        };
        let values: Vec<Value> = self.slots.iter().map(value).collect();
        // Whether LIKE fails of one that is too long depends on whether there is a row to ask.
        let most = limits::PATTERN_BYTES;
        let too_long = |value: &Value| matches!(value, Value::Text(text) if text.len() > most);
        if viewer.is_some() && self.matches && values.iter().any(too_long) {
            let detail = format!("a text beside LIKE is longer than {most} bytes");
            return Err(Refusal::new(Code::LimitExceeded, detail));
        }
        Ok(values)
    }
}

/// A bounded map that forgets what was not asked for during the last generation.
#[derive(Debug)]
struct Cache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Cache<K, V> {
        Cache { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    fn get<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}
