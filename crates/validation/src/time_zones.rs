//! The names of time zones.
//!
//! `time_zones.txt` has the names of IANA's tz database 2026c, sorted. The file is the listing of `lib/time/zoneinfo.zip`
//! of Go 1.27, the database that kube-apiserver reads if the machine has none.

/// The names, one a line.
const NAMES: &str = include_str!("time_zones.txt");

/// Checks a name as Go's `time.LoadLocation` does. Names are case-sensitive.
///
/// # Errors
/// Go's error text.
pub fn check_time_zone(name: &str) -> Result<(), String> {
    if matches!(name, "" | "UTC" | "Local") {
        return Ok(());
    }
    if name.contains("..") || name.starts_with(['/', '\\']) {
        return Err("time: invalid location name".to_owned());
    }
    if NAMES.lines().any(|known| known == name) {
        return Ok(());
    }
    // Go opens the name as a file of the database.
    let is_directory = NAMES.lines().any(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('/')));
    Err(if is_directory { "is a directory".to_owned() } else { format!("unknown time zone {name}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_complete() {
        let names: Vec<&str> = NAMES.lines().collect();
        assert!(names.is_sorted(), "the names are not sorted");
        assert_eq!(names.len(), 598);
    }

    #[test]
    fn time_zone_must_be_in_the_database() {
        let unknown = |name: &str| Err(format!("unknown time zone {name}"));
        for (name, expected) in [
            ("Europe/Berlin", Ok(())),
            ("America/Argentina/Buenos_Aires", Ok(())),
            ("Etc/GMT+5", Ok(())),
            ("UTC", Ok(())),
            ("Local", Ok(())),
            ("", Ok(())),
            ("Europe/Berlinx", unknown("Europe/Berlinx")),
            ("europe/berlin", unknown("europe/berlin")),
            ("Europe/Berl", unknown("Europe/Berl")),
            ("utc", unknown("utc")),
            ("America", Err("is a directory".to_owned())),
            ("America/Argentina", Err("is a directory".to_owned())),
            ("a..b", Err("time: invalid location name".to_owned())),
        ] {
            assert_eq!(check_time_zone(name), expected, "{name:?}");
        }
    }
}
