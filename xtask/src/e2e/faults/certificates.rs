//! The rotation of etcd's authority and certificates, in three steps: trust both authorities, issue new
//! certificates, trust the new authority only.

use std::path::Path;

use crate::failure::{Outcome, fail};

use super::super::cluster::pki::Pki;
use super::{Stage, pause};

/// The names of a certificate of etcd.
const NAMES: &str = "DNS:localhost,IP:127.0.0.1";

/// Issues the first certificates.
pub(super) fn issue(dir: &Path) -> Outcome<Pki> {
    let pki = Pki::empty(dir)?;
    pki.authority("old")?;
    sign(&pki, "old")?;
    trust(&pki, &["old"])?;
    Ok(pki)
}

/// Rotates the authority and the certificates. etcd reads its authorities when it starts, so etcd restarts in each
/// step. The server keeps running.
pub(super) fn rotate(stage: &mut Stage) -> Outcome<()> {
    let Some(pki) = stage.pki.clone() else { fail!("etcd has no certificates") };
    pki.authority("new")?;
    trust(&pki, &["old", "new"])?;
    restart(stage)?;
    sign(&pki, "new")?;
    restart(stage)?;
    trust(&pki, &["new"])?;
    restart(stage)
}

fn sign(pki: &Pki, authority: &str) -> Outcome<()> {
    pki.sign(authority, "server", "etcd", "", NAMES)?;
    pki.sign(authority, "client", "listwatch", "", "")
}

fn trust(pki: &Pki, authorities: &[&str]) -> Outcome<()> {
    let mut trusted = String::new();
    for authority in authorities {
        trusted += &std::fs::read_to_string(pki.file(&format!("{authority}.crt")))?;
    }
    Ok(std::fs::write(pki.file("ca.crt"), trusted)?)
}

fn restart(stage: &mut Stage) -> Outcome<()> {
    stage.etcd.kill(0)?;
    stage.etcd.restart(0)?;
    stage.etcd.wait_for_quorum()?;
    pause(1);
    Ok(())
}
