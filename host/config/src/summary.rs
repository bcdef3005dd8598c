//! A configuration in a few lines, for logs and `check`. Shows no digest of any key.

use std::fmt::{self, Write as _};

use crate::{AdminAccess, Config, PolicySource, PolicySpec, Pool, PoolSize, Tenant, TenantAccess, Tier};

impl Config {
    /// Several lines, the last without a newline. Says of keys only how many there are.
    pub fn summary(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_summary(&mut out);
        out.truncate(out.trim_end().len());
        out
    }

    fn write_summary(&self, out: &mut String) -> fmt::Result {
        let admin = match self.server.admin {
            AdminAccess::Open => "open",
            AdminAccess::Key(_) => "with a key",
        };
        writeln!(out, "listen {} | admin {} ({admin})", self.server.listen, self.server.admin_listen)?;
        for model in &self.models {
            let context = model.max_model_tokens.map_or("its own".to_owned(), |tokens| format!("{tokens} tokens"));
            writeln!(out, "model {} from {} | context {context}", model.name, model.path.display())?;
        }
        for device in &self.devices {
            let threads = device.threads.map_or("all".to_owned(), |threads| threads.to_string());
            writeln!(out, "device {} | threads {threads} | compute {}", device.name, device.compute)?;
        }
        for pool in &self.pools {
            self.write_pool(out, pool)?;
        }
        for lane in &self.lanes {
            let precision = self.precision(lane).map_or(String::new(), |precision| precision.to_string());
            writeln!(out, "lane {} | {precision} | at most {} waiting", lane.name, lane.max_waiting)?;
        }
        let [route, schedule, precision] =
            [&self.policies.route, &self.policies.schedule, &self.policies.precision].map(source_of);
        writeln!(out, "policies | route {route} | schedule {schedule} | precision {precision}")?;
        self.tenants.iter().try_for_each(|tenant| self.write_tenant(out, tenant))
    }

    fn write_pool(&self, out: &mut String, pool: &Pool) -> fmt::Result {
        let size = match pool.size {
            PoolSize::Pages(pages) => format!("{pages} pages"),
            PoolSize::MemoryMib(mib) => format!("{mib} MiB"),
        };
        let (zeroing, tags) = (self.zeroes_freed(pool), pool.tags);
        write!(
            out,
            "pool {} | {} | {}+kv-{} | {size} of {} tokens",
            pool.name, pool.stage, pool.recipe, pool.kv, pool.page_tokens
        )?;
        if let Some(checkpoint) = &pool.checkpoint {
            write!(out, " | weights of {}", checkpoint.display())?;
        }
        if pool.process {
            write!(out, " | a process of its own")?;
        }
        if pool.prefix_cache {
            let share = pool.prefix_tenant_percent.map_or("an equal share".to_owned(), |percent| format!("{percent} %"));
            write!(out, " | keeps prompts, {share} for each tenant")?;
        }
        writeln!(out, " | tags {} | freed pages {}", if tags { "on" } else { "OFF" }, if zeroing { "zeroed" } else { "kept" })
    }

    fn write_tenant(&self, out: &mut String, tenant: &Tenant) -> fmt::Result {
        let access = match &tenant.access {
            TenantAccess::Open => "open to everybody on this machine".to_owned(),
            TenantAccess::Keys(keys) => format!("{} key(s)", keys.len()),
        };
        let tier = match tenant.tier {
            Tier::Gold => "gold",
            Tier::Standard => "standard",
            Tier::Bulk => "bulk",
        };
        write!(out, "tenant {} | {access} | weight {} | tier {tier}", tenant.name, tenant.weight)?;
        match &tenant.trust_group {
            Some(group) => writeln!(out, " | shares kept prompts with group {group}"),
            None => writeln!(out),
        }
    }
}

/// What answers a decision, in words.
fn source_of(policy: &PolicySpec) -> String {
    match &policy.source {
        PolicySource::Builtin(name) => format!("builtin:{name}"),
        PolicySource::Native => "native".to_owned(),
        PolicySource::Component(component) => component.path.display().to_string(),
    }
}
