//! LIKE and GLOB, as SQLite's `patternCompare` has them, without its recursion: after a later wildcard an earlier one need
//! not be tried again, so one place to come back to is enough (Kirk J. Krauss, "Matching Wildcards: An Algorithm", 2008).
//! A match takes the length of the text times that of the pattern at most, and counts it.

/// Work in bytes that is counted at once.
const UNIT: u64 = 4 << 10;

/// Which characters mean something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    /// `%` or `*`; 0 is none.
    any: u32,
    /// `_` or `?`; 0 is none.
    one: u32,
    /// What takes the meaning from the character behind it, or `[`; 0 is none.
    other: u32,
    /// Whether `other` begins a set.
    sets: bool,
    /// Whether ASCII letters have no case.
    no_case: bool,
}

/// Where a wildcard stands, and how it goes on.
#[derive(Clone, Copy)]
enum Wildcard {
    /// Before a character.
    Character { character: u32, pattern: usize, text: usize },
    /// Before a set.
    Set { pattern: usize, text: usize },
}

impl Dialect {
    pub(super) fn like(escape: Option<u32>) -> Dialect {
        let other = escape.unwrap_or(0);
        let unless_escape = |character: char| {
            let character = u32::from(character);
            if escape == Some(character) { 0 } else { character }
        };
        let (any, one) = (unless_escape('%'), unless_escape('_'));
        Dialect { any, one, other, sets: false, no_case: true }
    }

    pub(super) fn glob() -> Dialect {
        let (any, one, other) = (u32::from('*'), u32::from('?'), u32::from('['));
        Dialect { any, one, other, sets: true, no_case: false }
    }

    /// Whether a text matches; nothing where `charge` says that the work is to end.
    pub(super) fn matches(
        &self,
        pattern: &[u8],
        text: &[u8],
        charge: &mut dyn FnMut(u64) -> bool,
    ) -> Option<bool> {
        let (pattern, text) = (until_nul(pattern), until_nul(text));
        let (mut p, mut t, mut wildcard, mut work) = (0, 0, None, 0_u64);
        loop {
            work += 16;
            if work >= UNIT {
                if !charge(work) {
                    return None;
                }
                work = 0;
            }
            let before = t;
            match self.step(pattern, text, &mut p, &mut t) {
                Step::Goes => continue,
                Step::Ends(matched) => {
                    return charge(work).then_some(matched);
                }
                Step::Wild(found) => wildcard = Some(found),
                Step::Fails => {}
            }
            work += t.saturating_sub(before) as u64;
            let Some(known) = &mut wildcard else { return charge(work).then_some(false) };
            let from = t;
            if !self.resume(known, text, &mut p, &mut t) {
                return charge(work).then_some(false);
            }
            work += t.saturating_sub(from) as u64;
        }
    }

    /// One character of the pattern.
    fn step(&self, pattern: &[u8], text: &[u8], p: &mut usize, t: &mut usize) -> Step {
        let mut wanted;
        (wanted, *p) = read(pattern, *p);
        if wanted == 0 {
            return if *t >= text.len() { Step::Ends(true) } else { Step::Fails };
        }
        if wanted == self.any {
            return self.wild(pattern, text, p, t);
        }
        let mut escaped = false;
        if wanted == self.other {
            if self.sets {
                return set(pattern, text, p, t);
            }
            (wanted, *p) = read(pattern, *p);
            if wanted == 0 {
                return Step::Fails;
            }
            escaped = true;
        }
        let (found, next) = read(text, *t);
        *t = next;
        let equal = wanted == found
            || (self.no_case && lower(wanted) == lower(found) && wanted < 0x80 && found < 0x80)
            || (wanted == self.one && !escaped && found != 0);
        if equal { Step::Goes } else { Step::Fails }
    }

    /// Behind a wildcard: others like it, and what stands behind them.
    fn wild(&self, pattern: &[u8], text: &[u8], p: &mut usize, t: &mut usize) -> Step {
        let (mut wanted, mut at);
        loop {
            at = *p;
            (wanted, *p) = read(pattern, *p);
            if wanted == self.one && self.one != 0 {
                let (found, next) = read(text, *t);
                if found == 0 {
                    return Step::Ends(false);
                }
                *t = next;
            } else if wanted != self.any {
                break;
            }
        }
        if wanted == 0 {
            return Step::Ends(true);
        }
        if wanted == self.other {
            if self.sets {
                return Step::Wild(Wildcard::Set { pattern: at, text: usize::MAX });
            }
            (wanted, *p) = read(pattern, *p);
            if wanted == 0 {
                return Step::Ends(false);
            }
        }
        Step::Wild(Wildcard::Character { character: wanted, pattern: *p, text: *t })
    }

    /// The next place in the text at which a wildcard may end. False where there is none.
    fn resume(&self, wildcard: &mut Wildcard, text: &[u8], p: &mut usize, t: &mut usize) -> bool {
        match wildcard {
            Wildcard::Character { character, pattern, text: from } => {
                let rest = text.get(*from..).unwrap_or_default();
                let next = match u8::try_from(*character) {
                    Ok(byte) if byte < 0x80 && self.no_case => {
                        let cases = (byte.to_ascii_lowercase(), byte.to_ascii_uppercase());
                        memchr::memchr2(cases.0, cases.1, rest).map(|at| *from + at + 1)
                    }
                    Ok(byte) if byte < 0x80 => memchr::memchr(byte, rest).map(|at| *from + at + 1),
                    _ => next_of(*character, text, *from),
                };
                let Some(next) = next else { return false };
                (*from, *p, *t) = (next, *pattern, next);
                true
            }
            Wildcard::Set { pattern, text: from } => {
                let next = if *from == usize::MAX { *t } else { skip(text, *from) };
                if next >= text.len() {
                    return false;
                }
                (*from, *p, *t) = (next, *pattern, next);
                true
            }
        }
    }
}

/// A set in brackets; `p` is behind the first of them.
fn set(pattern: &[u8], text: &[u8], p: &mut usize, t: &mut usize) -> Step {
    let found;
    (found, *t) = read(text, *t);
    if found == 0 {
        return Step::Fails;
    }
    let (mut seen, mut inverted, mut before) = (false, false, 0);
    let mut member = || {
        let (member, next) = read(pattern, *p);
        *p = next;
        let following = pattern.get(next).copied().unwrap_or(0);
        (member, following)
    };
    let mut current = member();
    if current.0 == u32::from('^') {
        inverted = true;
        current = member();
    }
    if current.0 == u32::from(']') {
        seen = found == u32::from(']');
        current = member();
    }
    while current.0 != 0 && current.0 != u32::from(']') {
        let is_range =
            current.0 == u32::from('-') && current.1 != b']' && current.1 != 0 && before > 0;
        if is_range {
            current = member();
            seen |= (before..=current.0).contains(&found);
            before = 0;
        } else {
            seen |= found == current.0;
            before = current.0;
        }
        current = member();
    }
    if current.0 == 0 || seen == inverted { Step::Fails } else { Step::Goes }
}

/// What a character of the pattern came to.
enum Step {
    /// It is in the text.
    Goes,
    /// It is not.
    Fails,
    /// A wildcard.
    Wild(Wildcard),
    /// The result is certain.
    Ends(bool),
}

/// The place behind the next such character.
fn next_of(character: u32, text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while at < text.len() {
        let (found, next) = read(text, at);
        at = next;
        if found == character {
            return Some(at);
        }
    }
    None
}

fn lower(character: u32) -> u32 {
    if (u32::from('A')..=u32::from('Z')).contains(&character) { character + 32 } else { character }
}

/// A text up to its first NUL: SQLite reads these as texts of C.
pub(super) fn until_nul(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |end| &text[..end])
}

/// The character at a place, and where the next one begins; 0 at the end. What is not UTF-8 is read as SQLite does
/// (`sqlite3Utf8Read`).
pub(super) fn read(text: &[u8], at: usize) -> (u32, usize) {
    if at >= text.len() { (0, at) } else { read_all(text, at) }
}

/// The same of a text in which NUL is a character.
pub(super) fn read_all(text: &[u8], at: usize) -> (u32, usize) {
    let first = u32::from(text[at]);
    let mut next = at + 1;
    if first < 0xC0 {
        return (first, next);
    }
    let mut character = match first {
        0xC0..=0xDF => first & 0x1F,
        0xE0..=0xEF => first & 0x0F,
        0xF0..=0xF7 => first & 0x07,
        0xF8..=0xFB => first & 0x03,
        0xFC..=0xFD => first & 0x01,
        _ => 0,
    };
    while let Some(byte) = text.get(next).filter(|byte| **byte & 0xC0 == 0x80) {
        character = (character << 6).wrapping_add(u32::from(byte & 0x3F));
        next += 1;
    }
    let is_wrong =
        character < 0x80 || character & 0xFFFF_F800 == 0xD800 || character & 0xFFFF_FFFE == 0xFFFE;
    (if is_wrong { 0xFFFD } else { character }, next)
}

/// Where the next character begins.
fn skip(text: &[u8], at: usize) -> usize {
    let mut next = at + 1;
    if text[at] >= 0xC0 {
        while text.get(next).is_some_and(|byte| byte & 0xC0 == 0x80) {
            next += 1;
        }
    }
    next
}

/// The characters of a text up to its first NUL, as bytes.
pub(super) fn characters(text: &[u8]) -> Vec<&[u8]> {
    let text = until_nul(text);
    let (mut characters, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let next = skip(text, at);
        characters.push(&text[at..next]);
        at = next;
    }
    characters
}

/// The one character of a text.
pub(super) fn single_character(text: &[u8]) -> Option<u32> {
    match characters(text).as_slice() {
        [only] => Some(read(only, 0).0),
        _ => None,
    }
}
