//! The schema: one file per kind of section, read in the order in which they refer to each other. Every key that a configuration
//! may have is named here and below, once.

use toml::de::DeTable;

use crate::reader::Reader;
use crate::{Config, ErrorKind};

mod base;
mod lanes;
mod limits;
mod models;
mod origins;
mod policies;
mod pools;
mod server;
mod tenants;

pub(crate) use base::Base;

/// Walks the whole text. What comes back is complete even where the reader noted errors; it may be used only if it noted none.
pub(crate) fn read(reader: &mut Reader, root: &DeTable<'_>, source_name: &str) -> Config {
    let base = Base::of(source_name);
    let mut root = reader.root(root);
    let models = models::models(&mut root, &base);
    let devices = models::devices(&mut root);
    let pools = pools::read(&mut root, &models, &devices, &base);
    let lanes = lanes::read(&mut root, &pools);
    let policies = policies::read(&mut root.section("policy"), &base);
    let limits = limits::read(&mut root.section("limits"), &models);
    let tenants = tenants::read(&mut root, &lanes, &limits);
    let server = server::read(&mut root.section("server"), &tenants);
    pools::check_zeroing(&mut root, &pools, &tenants);
    pools::check_shares(&mut root, &pools, &tenants);
    root.finish();
    Config {
        source: source_name.to_owned(),
        server,
        models,
        devices,
        pools: pools.into_iter().map(|row| row.pool).collect(),
        lanes,
        policies,
        tenants,
        limits,
    }
}

/// Says that the file has none of a kind of table that it needs.
fn missing_table(root: &mut crate::reader::Section<'_, '_>, kind: &'static str, why: &str, example: &str) {
    let message = format!("there is no `[{kind}.NAME]`: {why}");
    root.error(ErrorKind::Missing, kind, message, &format!("add {example}"));
}
