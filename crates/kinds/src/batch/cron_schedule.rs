//! Validates cron schedules and time zones.
//!
//! Source: the parser of `github.com/robfig/cron/v3`, which kube-apiserver uses.

use listwatch_meta::go;
use listwatch_validation::time_zones::check_time_zone;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The range of a field, and the names of its values.
struct Bounds {
    least: u64,
    most: u64,
    names: &'static [&'static str],
}

const FIELDS: [Bounds; 5] = [
    Bounds { least: 0, most: 59, names: &[] },
    Bounds { least: 0, most: 23, names: &[] },
    Bounds { least: 1, most: 31, names: &[] },
    Bounds { least: 1, most: 12, names: &MONTHS },
    Bounds { least: 0, most: 6, names: &DAYS },
];

/// Validates a schedule.
///
/// # Errors
/// The message of the library.
pub(crate) fn parse(schedule: &str) -> Result<(), String> {
    let mut rest = schedule;
    if rest.starts_with("TZ=") || rest.starts_with("CRON_TZ=") {
        // Without a space the library panics, and upstream reports the panic.
        let Some((zone, behind)) = rest.split_once(' ') else {
            return Err("invalid schedule format: runtime error: slice bounds out of range [:-1]".to_owned());
        };
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        check_time_zone(zone).map_err(|why| format!("provided bad location {zone}: {why}"))?;
        rest = behind.trim();
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (field, bounds) in fields.iter().zip(&FIELDS) {
        for range in field.split(',').filter(|range| !range.is_empty()) {
            validate_range(range, bounds)?;
        }
    }
    Ok(())
}

fn descriptor(schedule: &str) -> Result<(), String> {
    const KNOWN: [&str; 7] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
    if KNOWN.contains(&schedule) {
        return Ok(());
    }
    match schedule.strip_prefix("@every ") {
        Some(duration) => {
            validate_duration(duration).map_err(|why| format!("failed to parse duration {schedule}: {why}"))
        }
        None => Err(format!("unrecognized descriptor: {schedule}")),
    }
}

/// Validates a duration as Go's `time.ParseDuration` does.
fn validate_duration(text: &str) -> Result<(), String> {
    let quoted = go::quote(text);
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    let invalid = || Err(format!("time: invalid duration {quoted}"));
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let digits = &rest[..rest.len() - number.len()];
        if !digits.contains(|c: char| c.is_ascii_digit()) || digits.matches('.').count() > 1 {
            return invalid();
        }
        let behind = number.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '.');
        let unit = &number[..number.len() - behind.len()];
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {quoted}"));
        }
        if !matches!(unit, "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            return Err(format!("time: unknown unit {} in duration {quoted}", go::quote(unit)));
        }
        rest = behind;
    }
    Ok(())
}

fn integer(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let failed =
        |why: &str| Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {}: {why}", go::quote(text)));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return failed("invalid syntax");
    }
    match text.parse::<i64>() {
        Err(_) => failed("value out of range"),
        Ok(number) => u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}")),
    }
}

fn validate_range(range: &str, bounds: &Bounds) -> Result<(), String> {
    let read = |text: &str| match bounds.names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        Some(place) => Ok(place as u64 + bounds.least),
        None => integer(text),
    };
    let parts: Vec<&str> = range.splitn(4, '/').collect();
    let ends: Vec<&str> = parts[0].splitn(4, '-').collect();
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        (bounds.least, bounds.most)
    } else {
        let start = read(ends[0])?;
        match ends.len() {
            1 => (start, start),
            2 => (start, read(ends[1])?),
            _ => return Err(format!("too many hyphens: {range}")),
        }
    };
    let step = match parts.len() {
        1 => 1,
        2 => {
            let step = integer(parts[1])?;
            if ends.len() == 1 {
                end = bounds.most;
            }
            step
        }
        _ => return Err(format!("too many slashes: {range}")),
    };
    let Bounds { least, most, .. } = bounds;
    if start < *least {
        return Err(format!("beginning of range ({start}) below minimum ({least}): {range}"));
    }
    if end > *most {
        return Err(format!("end of range ({end}) above maximum ({most}): {range}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    Ok(())
}

/// The largest size of one segment of the name of a time zone, in bytes.
const ZONE_PART_CHARS_MAX: usize = 14;

/// Validates the name of a time zone. Returns upstream's messages.
pub(crate) fn time_zone_problems(zone: &str) -> Vec<String> {
    if zone.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'+');
    let wrong = zone.split('/').any(|part| {
        matches!(part, "." | "..")
            || part.starts_with('-')
            || !(1..=ZONE_PART_CHARS_MAX).contains(&part.len())
            || !part.bytes().all(fits)
    });
    if wrong {
        return vec![format!("unknown time zone {zone}")];
    }
    let mut problems = Vec::new();
    if zone.eq_ignore_ascii_case("Local") {
        problems
            .push("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned());
    }
    problems.extend(check_time_zone(zone).err());
    problems
}
