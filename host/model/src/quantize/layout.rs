//! Where each tensor of the result lies: shards of bounded size, their headers, the index. Knows no values.
//!
//! A safetensors file is `length: u64, JSON of that length, data`, tensors back to back. Within a shard those of the widest
//! elements come first, so that every tensor is aligned to its elements whatever lies before it.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::QuantizeError;
use super::plan::{Output, Plan};

/// Readers bound what they take for a header; a shard ends before its own comes near.
const MAX_HEADER_BYTES: usize = 32 << 20;
/// Bytes of a header beside a tensor's name, at most: four dimensions and two offsets.
const ENTRY_BYTES: usize = 200;
const MAX_SHARDS: usize = 4096;
/// Name of the only file of a checkpoint in one.
const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// One file of the result.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    /// Length and JSON; the data begins after it.
    pub(super) header: Vec<u8>,
    /// Of the whole file.
    pub(super) bytes: u64,
}

/// Shard and offset in its file of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) shard: usize,
    pub(super) offset: u64,
}

/// All files, and the place of each output of the plan.
pub(super) struct Layout {
    pub(super) shards: Vec<Shard>,
    pub(super) places: Vec<Place>,
    /// Of all tensors.
    pub(super) data_bytes: u64,
}

impl Layout {
    /// Fills shards with whole steps up to `shard_bytes` of data; a step that is larger has a shard of its own.
    ///
    /// # Errors
    /// [`QuantizeError::Option`] where that makes too many files.
    pub(super) fn new(plan: &Plan, shard_bytes: u64) -> Result<Self, QuantizeError> {
        let groups = groups(plan, shard_bytes);
        if groups.len() > MAX_SHARDS {
            let allowed = format!("makes {} files, at most {MAX_SHARDS} are allowed", groups.len());
            return Err(QuantizeError::Option { option: "shard size", found: format!("{shard_bytes} bytes"), allowed });
        }
        let mut layout = Self { shards: Vec::new(), places: vec![Place::default(); plan.outputs.len()], data_bytes: 0 };
        let count = groups.len();
        for (shard, group) in groups.into_iter().enumerate() {
            let outputs = plan.outputs.get(group.clone()).unwrap_or_default();
            let mut order: Vec<usize> = (0..outputs.len()).collect();
            order.sort_by_key(|&i| outputs.get(i).map(|output| std::cmp::Reverse(output.kind.alignment)));
            let mut entries = Map::new();
            entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
            let (mut end, mut places) = (0u64, Vec::with_capacity(order.len()));
            for i in order {
                let Some(output) = outputs.get(i) else { continue };
                let begin = end;
                end = end.saturating_add(output.bytes);
                entries.insert(output.name.clone(), entry(output, begin..end));
                places.push((group.start.saturating_add(i), begin));
            }
            let header = header(entries);
            for (output, begin) in places {
                if let Some(place) = layout.places.get_mut(output) {
                    *place = Place { shard, offset: begin.saturating_add(header.len() as u64) };
                }
            }
            layout.data_bytes = layout.data_bytes.saturating_add(end);
            let name = if count == 1 { SINGLE.to_owned() } else { format!("model-{:05}-of-{count:05}.safetensors", shard + 1) };
            layout.shards.push(Shard { name, bytes: end.saturating_add(header.len() as u64), header });
        }
        Ok(layout)
    }

    /// The text of the index, which names the file of each tensor; None for a checkpoint in one file.
    pub(super) fn index(&self, plan: &Plan) -> Option<String> {
        if self.shards.len() == 1 {
            return None;
        }
        let files = plan.outputs.iter().zip(&self.places).filter_map(|(output, place)| {
            let shard = self.shards.get(place.shard)?;
            Some((output.name.clone(), Value::String(shard.name.clone())))
        });
        let index = json!({ "metadata": { "total_size": self.data_bytes }, "weight_map": files.collect::<Map<String, Value>>() });
        Some(format!("{index:#}\n"))
    }
}

/// Ranges of outputs that make a shard; a step's outputs stay together.
fn groups(plan: &Plan, shard_bytes: u64) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut bytes, mut header_bytes) = (0u64, 0usize);
    for step in &plan.steps {
        let outputs = plan.outputs.get(step.outputs.clone()).unwrap_or_default();
        let step_bytes: u64 = outputs.iter().map(|output| output.bytes).sum();
        let step_header: usize = outputs.iter().map(|output| output.name.len().saturating_add(ENTRY_BYTES)).sum();
        let full = step_bytes > 0 && bytes.saturating_add(step_bytes) > shard_bytes
            || header_bytes.saturating_add(step_header) > MAX_HEADER_BYTES;
        match groups.last_mut() {
            Some(group) if !full => {
                group.end = step.outputs.end;
                (bytes, header_bytes) = (bytes.saturating_add(step_bytes), header_bytes.saturating_add(step_header));
            }
            _ => {
                groups.push(step.outputs.clone());
                (bytes, header_bytes) = (step_bytes, step_header);
            }
        }
    }
    groups
}

fn entry(output: &Output, offsets: Range<u64>) -> Value {
    json!({ "dtype": output.kind.name, "shape": output.shape, "data_offsets": [offsets.start, offsets.end] })
}

/// Length and JSON, padded with spaces so that the data begins at a multiple of eight.
fn header(entries: Map<String, Value>) -> Vec<u8> {
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::elsewhere::Container;
    use super::super::plan::{Action, Modules, Step};
    use super::super::source::ElementType;
    use super::*;

    /// A plan of steps with these outputs: (type, elements of a vector).
    fn plan(steps: &[&[(ElementType, usize)]]) -> Plan {
        let mut plan = Plan {
            steps: Vec::new(),
            outputs: Vec::new(),
            modules: Modules::default(),
            container: Container::CompressedTensors,
            kept: BTreeMap::new(),
            notes: Vec::new(),
        };
        for (index, step) in steps.iter().enumerate() {
            let first = plan.outputs.len();
            for (part, &(kind, count)) in step.iter().enumerate() {
                let bytes = count as u64 * kind.alignment;
                plan.outputs.push(Output { name: format!("t{index}.{part}"), kind, shape: vec![count], bytes });
            }
            let outputs = first..plan.outputs.len();
            plan.steps.push(Step { tensor: index, scales: None, action: Action::Copy, outputs });
        }
        plan
    }

    const MIXED: &[&[(ElementType, usize)]] = &[
        &[(ElementType::F8_E4M3, 3), (ElementType::F32, 1)],
        &[(ElementType::BF16, 5)],
        &[(ElementType::I32, 8), (ElementType::BF16, 3), (ElementType::I64, 2)],
        &[(ElementType::F32, 0)],
    ];

    #[test]
    fn tensors_are_aligned_and_lie_back_to_back() {
        for shard_bytes in [1, 20, 70, 1 << 30] {
            let plan = plan(MIXED);
            let layout = Layout::new(&plan, shard_bytes).unwrap();
            for (output, place) in plan.outputs.iter().zip(&layout.places) {
                assert_eq!(place.offset % output.kind.alignment, 0, "{}", output.name);
            }
            for (index, shard) in layout.shards.iter().enumerate() {
                let mut file = shard.header.clone();
                file.resize(shard.bytes as usize, 0);
                // The crate's reader refuses holes, overlaps and sizes that do not fit the shape.
                let read = safetensors::SafeTensors::deserialize(&file).unwrap();
                let held = plan.outputs.iter().zip(&layout.places).filter(|(_, place)| place.shard == index).count();
                assert_eq!(read.len(), held);
                assert!(held > 0, "{}", shard.name);
            }
        }
    }

    #[test]
    fn shards_are_as_large_as_allowed_and_steps_stay_whole() {
        let plan = plan(MIXED);
        let one = Layout::new(&plan, 1 << 30).unwrap();
        assert_eq!((one.shards.len(), one.shards[0].name.as_str()), (1, "model.safetensors"));
        assert!(one.index(&plan).is_none());
        let layout = Layout::new(&plan, 20).unwrap();
        let names: Vec<&str> = layout.shards.iter().map(|shard| shard.name.as_str()).collect();
        assert_eq!(names, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
        let shards: Vec<usize> = layout.places.iter().map(|place| place.shard).collect();
        assert_eq!(shards, [0, 0, 0, 1, 1, 1, 1]);
        let index: Value = serde_json::from_str(&layout.index(&plan).unwrap()).unwrap();
        assert_eq!(index["metadata"]["total_size"], 7 + 10 + 54);
        assert_eq!(index["weight_map"]["t2.1"], names[1]);
    }

    #[test]
    fn the_number_of_shards_is_bounded() {
        let step: &[(ElementType, usize)] = &[(ElementType::F32, 1)];
        assert_eq!(Layout::new(&plan(&vec![step; 4096]), 4).unwrap().shards.len(), 4096);
        let error = Layout::new(&plan(&vec![step; 4097]), 4).err().unwrap().to_string();
        assert!(error.contains("makes 4097 files, at most 4096"), "{error}");
    }
}
