//! LIKE and GLOB as in SQLite's `patternCompare`, without its recursion. After a later wildcard
//! matches, an earlier one need not be retried, so one backtracking point is enough (Kirk J.
//! Krauss, "Matching Wildcards: An Algorithm", 2008). A match takes at most the length of the text
//! times that of the pattern, and counts its work.

/// The granularity of counted work, in bytes.
const UNIT: u64 = 4 << 10;

/// The characters with a special meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dialect {
    /// `%` or `*`; 0 for none.
    any: u32,
    /// `_` or `?`; 0 for none.
    one: u32,
    /// The escape character, or `[`; 0 for none.
    other: u32,
    /// Whether `other` starts a set.
    sets: bool,
    /// Whether ASCII letters match without case.
    no_case: bool,
}

/// The position of a wildcard, and what follows it.
#[derive(Clone, Copy)]
enum Wildcard {
    /// A character.
    Character { character: u32, pattern: usize, text: usize },
    /// A set.
    Set { pattern: usize, text: usize },
}

impl Dialect {
    pub(super) fn like(escape: Option<u32>) -> Dialect {
        let other = escape.unwrap_or(0);
        let unless_escape = |character: char| {
            let character = u32::from(character);
            if escape == Some(character) { 0 } else { character }
        };
        let any = unless_escape('%');
        let one = unless_escape('_');
        Dialect { any, one, other, sets: false, no_case: true }
    }

    pub(super) fn glob() -> Dialect {
        let any = u32::from('*');
        let one = u32::from('?');
        let other = u32::from('[');
        Dialect { any, one, other, sets: true, no_case: false }
    }

    /// Whether a text matches; `None` if `charge` stops the work.
    pub(super) fn matches(
        &self,
        pattern: &[u8],
        text: &[u8],
        charge: &mut dyn FnMut(u64) -> bool,
    ) -> Option<bool> {
        let pattern = until_nul(pattern);
        let text = until_nul(text);
        let mut p = 0;
        let mut t = 0;
        let mut wildcard = None;
        let mut work = 0_u64;
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

    /// Matches one character of the pattern.
    fn step(&self, pattern: &[u8], text: &[u8], p: &mut usize, t: &mut usize) -> Step {
        let mut wanted;
        (wanted, *p) = read_character(pattern, *p);
        if wanted == 0 {
            return if *t >= text.len() { Step::Ends(true) } else { Step::Fails };
        }
        if wanted == self.any {
            return self.skip_wildcards(pattern, text, p, t);
        }
        let mut escaped = false;
        if wanted == self.other {
            if self.sets {
                return match_set(pattern, text, p, t);
            }
            (wanted, *p) = read_character(pattern, *p);
            if wanted == 0 {
                return Step::Fails;
            }
            escaped = true;
        }
        let (found, next) = read_character(text, *t);
        *t = next;
        let equal = wanted == found
            || (self.no_case && lower(wanted) == lower(found) && wanted < 0x80 && found < 0x80)
            || (wanted == self.one && !escaped && found != 0);
        if equal { Step::Goes } else { Step::Fails }
    }

    /// Skips adjacent wildcards and reads what follows them.
    fn skip_wildcards(&self, pattern: &[u8], text: &[u8], p: &mut usize, t: &mut usize) -> Step {
        let (mut wanted, mut at);
        loop {
            at = *p;
            (wanted, *p) = read_character(pattern, *p);
            if wanted == self.one && self.one != 0 {
                let (found, next) = read_character(text, *t);
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
            (wanted, *p) = read_character(pattern, *p);
            if wanted == 0 {
                return Step::Ends(false);
            }
        }
        Step::Wild(Wildcard::Character { character: wanted, pattern: *p, text: *t })
    }

    /// Advances to the next position in the text where a wildcard can end; `false` if there is
    /// none.
    fn resume(&self, wildcard: &mut Wildcard, text: &[u8], p: &mut usize, t: &mut usize) -> bool {
        match wildcard {
            Wildcard::Character { character, pattern, text: from } => {
                let rest = text.get(*from..).unwrap_or_default();
                let next = match u8::try_from(*character) {
                    Ok(byte) if byte < 0x80 && self.no_case => {
                        let lower = byte.to_ascii_lowercase();
                        let upper = byte.to_ascii_uppercase();
                        memchr::memchr2(lower, upper, rest).map(|at| *from + at + 1)
                    }
                    Ok(byte) if byte < 0x80 => memchr::memchr(byte, rest).map(|at| *from + at + 1),
                    _ => find_after(*character, text, *from),
                };
                let Some(next) = next else { return false };
                *from = next;
                *p = *pattern;
                *t = next;
                true
            }
            Wildcard::Set { pattern, text: from } => {
                let next = if *from == usize::MAX { *t } else { next_character(text, *from) };
                if next >= text.len() {
                    return false;
                }
                *from = next;
                *p = *pattern;
                *t = next;
                true
            }
        }
    }
}

/// Matches a set in brackets; `p` is after the opening bracket.
fn match_set(pattern: &[u8], text: &[u8], p: &mut usize, t: &mut usize) -> Step {
    let found;
    (found, *t) = read_character(text, *t);
    if found == 0 {
        return Step::Fails;
    }
    let mut seen = false;
    let mut inverted = false;
    let mut before = 0;
    let mut member = || {
        let (member, next) = read_character(pattern, *p);
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

/// The result of one character of the pattern.
enum Step {
    /// Matched.
    Goes,
    /// Did not match.
    Fails,
    /// A wildcard.
    Wild(Wildcard),
    /// The final result is known.
    Ends(bool),
}

/// The position after the next such character.
fn find_after(character: u32, text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while at < text.len() {
        let (found, next) = read_character(text, at);
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

/// A text up to its first NUL: SQLite reads these as C strings.
pub(super) fn until_nul(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |end| &text[..end])
}

/// The character at a position, and the position of the next one; 0 at the end. Invalid UTF-8 is
/// read as SQLite does (`sqlite3Utf8Read`).
pub(super) fn read_character(text: &[u8], at: usize) -> (u32, usize) {
    if at >= text.len() { (0, at) } else { read_character_or_nul(text, at) }
}

/// The character at a position of a text in which NUL is a character, and the position of the next one.
pub(super) fn read_character_or_nul(text: &[u8], at: usize) -> (u32, usize) {
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

/// The position of the next character.
fn next_character(text: &[u8], at: usize) -> usize {
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
    let mut characters = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let next = next_character(text, at);
        characters.push(&text[at..next]);
        at = next;
    }
    characters
}

/// The character of a text with exactly one.
pub(super) fn single_character(text: &[u8]) -> Option<u32> {
    match characters(text).as_slice() {
        [only] => Some(read_character(only, 0).0),
        _ => None,
    }
}
