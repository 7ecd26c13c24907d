"""The usage code of a model card for an adapter: loads the base model, then the adapter."""

import re
from typing import Final

_LOAD: Final = re.compile(r'^model = (\w+)\.from_pretrained\("\{model\}"\)\.eval\(\)$', re.M)
_PIPELINE: Final = re.compile(r'^(\w+ = pipeline\("([\w-]+)", )model="\{model\}"', re.M)
_IMPORT: Final = re.compile(r"^from transformers import (.+)$", re.M)
_CLASSES: Final = {
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "text-generation": "AutoModelForCausalLM",
    "fill-mask": "AutoModelForMaskedLM",
}
_TOKENIZER: Final = 'tokenizer = AutoTokenizer.from_pretrained("{model}")\n'
_LOADING: Final = """\
config = AutoConfig.from_pretrained("{model}", subfolder="{config_folder}")
base = AutoModel.from_pretrained(
    "{base}",
    config=config,
)
model = PeftModel.from_pretrained(base, "{model}").eval()"""
_REVISION_LOADING: Final = _LOADING.replace("    config", '    revision="{revision}",\n    config')
_GENERATION: Final = """\
base.generation_config = GenerationConfig.from_pretrained(
    "{model}", subfolder="{config_folder}"
)"""


def of_adapter(code: str, *, with_revision: bool) -> str:
    """Change `code`, which loads a whole model `{model}` or a pipeline with it, to load an adapter.

    The new code has the placeholders `{base}`, `{config_folder}` for the adapter's folder with the
    base model's configuration, and, if wanted, `{revision}` of the base model.
    """
    loading = _REVISION_LOADING if with_revision else _LOADING
    pipeline = _PIPELINE.search(code)
    if pipeline is None:
        load = _LOAD.search(code)
        assert load is not None, "a card's code loads its model in one of two ways"
        auto_model = load[1]
        code = _LOAD.sub(lambda _: loading.replace("AutoModel", auto_model), code)
        new = {"AutoConfig"}
    else:
        auto_model = _CLASSES[pipeline[2]]
        before = _TOKENIZER + loading.replace("AutoModel", auto_model)
        code = _PIPELINE.sub(rf"{before}\n\1model=model, tokenizer=tokenizer", code)
        new = {"AutoConfig", "AutoTokenizer", auto_model}
    if ".generate(" in code or "text-generation" in code:
        code = code.replace("\nmodel = PeftModel", f"\n{_GENERATION}\nmodel = PeftModel")
        new.add("GenerationConfig")
    names = _IMPORT.search(code)
    assert names is not None, "both ways import from transformers"
    return _IMPORT.sub(_imports({*names[1].split(", "), *new}), code)


def _imports(names: set[str]) -> str:
    # Classes before functions, as import sorters order them.
    ordered = "".join(f"    {name},\n" for name in sorted(names, key=lambda n: (n.islower(), n)))
    return f"from peft import PeftModel\nfrom transformers import (\n{ordered})"
