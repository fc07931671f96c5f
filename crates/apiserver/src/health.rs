//! `/healthz`, `/livez`, `/readyz`: the checks and their bodies, as a pure function over the
//! findings ([`report`]).
//!
//! Rules: server-side `healthz.go` — `ok` when all pass, the verbose form when asked for or when
//! something fails, the reason withheld from strangers.

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The check's name, e.g. `etcd`.
    pub(crate) name: &'static str,
    /// What is wrong, if anything. Shown only where the single check is asked for.
    pub(crate) problem: Option<String>,
}

/// The code and plain-text body for an endpoint.
pub(crate) fn report(
    endpoint: &str,
    findings: &[Finding],
    check: Option<&str>,
    verbose: bool,
    exclude: &[String],
) -> (u16, String) {
    if let Some(check) = check {
        return match findings.iter().find(|finding| finding.name == check) {
            None => (404, "404 page not found\n".to_owned()),
            Some(Finding { problem: None, .. }) => (200, "ok".to_owned()),
            Some(Finding { problem: Some(why), .. }) => (500, format!("internal server error: {why}\n")),
        };
    }
    let mut text = String::new();
    let mut failed = false;
    for Finding { name, problem } in findings {
        if exclude.iter().any(|excluded| excluded == name) {
            text.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if problem.is_some() {
            failed = true;
            text.push_str(&format!("[-]{name} failed: reason withheld\n"));
        } else {
            text.push_str(&format!("[+]{name} ok\n"));
        }
    }
    let unknown: Vec<String> = exclude
        .iter()
        .filter(|excluded| !findings.iter().any(|finding| finding.name == **excluded))
        .map(|excluded| format!("{excluded:?}"))
        .collect();
    if !unknown.is_empty() {
        text.push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", unknown.join(", ")));
    }
    if failed {
        return (500, format!("{text}{endpoint} check failed\n"));
    }
    if verbose {
        return (200, format!("{text}{endpoint} check passed\n"));
    }
    (200, "ok".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(etcd: Option<&str>) -> Vec<Finding> {
        vec![Finding { name: "ping", problem: None }, Finding { name: "etcd", problem: etcd.map(str::to_owned) }]
    }

    #[test]
    fn bodies_are_those_of_kubernetes() {
        let well = findings(None);
        let ill = findings(Some("connection refused"));
        let excluded = ["etcd".to_owned(), "x".to_owned()];
        for (report, expected) in [
            (report("readyz", &well, None, false, &[]), (200, "ok".to_owned())),
            (report("readyz", &well, None, true, &[]), (200, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n".to_owned())),
            (
                report("livez", &ill, None, false, &[]),
                (500, "[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed\n".to_owned()),
            ),
            (
                report("livez", &ill, None, true, &excluded),
                (200, "[+]ping ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nlivez check passed\n".to_owned()),
            ),
            (report("livez", &ill, Some("ping"), false, &[]), (200, "ok".to_owned())),
            (report("livez", &ill, Some("etcd"), false, &[]), (500, "internal server error: connection refused\n".to_owned())),
            (report("livez", &ill, Some("x"), false, &[]).to_owned(), (404, "404 page not found\n".to_owned())),
        ] {
            assert_eq!(report, expected);
        }
    }
}
