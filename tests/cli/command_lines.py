"""Command lines from typical shell scripts, and the equivalent specs."""

from typing import Any

FP32 = {"precision": "fp32"}

# Name → script and the expected spec.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qa on SQuAD": (
        r"""
        python run_qa.py \
          --model_name_or_path google-bert/bert-base-uncased \
          --dataset_name squad \
          --do_train \
          --do_eval \
          --per_device_train_batch_size 12 \
          --learning_rate 3e-5 \
          --num_train_epochs 2 \
          --max_seq_length 384 \
          --doc_stride 128 \
          --output_dir runs/debug_squad/
        """,
        {
            "name": "debug_squad",
            "task": "question-answering",
            "model": {"name_or_path": "google-bert/bert-base-uncased"},
            "dataset": {"source": "hub", "name": "squad", "validation": "validation"},
            "training": {
                "num_train_epochs": 2.0,
                "per_device_train_batch_size": 12,
                "learning_rate": 3e-5,
                **FP32,
            },
        },
    ),
    "qa with questions that have no answer": (
        r"""
        export CUDA_VISIBLE_DEVICES=0,1
        torchrun --nproc_per_node 4 run_qa.py --model_name_or_path "xlnet/xlnet-large-cased" \
          --dataset_name squad_v2 --do_train --do_eval --version_2_with_negative \
          --null_score_diff_threshold=-1.5 --n_best_size 10 --max_answer_length 50 \
          --bf16 True --eval_strategy epoch --save_strategy epoch --load_best_model_at_end \
          --metric_for_best_model f1 --output_dir out  2>&1 | tee train.log
        """,
        {
            "name": "out",
            "task": {
                "type": "question-answering",
                "version_2_with_negative": True,
                "n_best_size": 10,
                "max_answer_length": 50,
                "null_score_diff_threshold": -1.5,
            },
            "model": {"name_or_path": "xlnet/xlnet-large-cased"},
            "dataset": {"source": "hub", "name": "squad_v2", "validation": "validation"},
            "training": {
                "precision": "bf16",
                "eval_strategy": "epoch",
                "save_strategy": "epoch",
                "load_best_model_at_end": True,
                "metric_for_best_model": "f1",
            },
            "resources": {"gpus": 4},
        },
    ),
    "qa with beam search on local files": (
        """
        # first the variables
        DATA="data set"
        WANDB_DISABLED=true python3 -u examples/pytorch/question-answering/run_qa_beam_search.py \\
          --model_name_or_path=xlnet/xlnet-base-cased --train_file "$DATA/train.json" \\
          --validation_file ${DATA}/dev.json --do_train --do_eval --max-seq-length 256 \\
          --output_dir out --overwrite_output_dir --no_cuda
        """,
        {
            "name": "out",
            "task": {"type": "question-answering", "max_seq_length": 256, "head": "beam-search"},
            "model": {"name_or_path": "xlnet/xlnet-base-cased"},
            "dataset": {
                "source": "upload",
                "train": "./data set/train.json",
                "validation": "./data set/dev.json",
            },
            "training": {"use_cpu": True, **FP32},
            "resources": {"gpus": 0},
        },
    ),
    "squad of the old days": (
        r"""
        export SQUAD_DIR=squad
        python -m torch.distributed.launch --nproc_per_node=8 run_squad.py \
            --model_type bert --model_name_or_path bert-large-uncased-whole-word-masking \
            --do_train --do_eval --do_lower_case --data_dir $SQUAD_DIR --version_2_with_negative \
            --learning_rate 3e-5 --num_train_epochs 2 --max_query_length 64 --threads 8 \
            --output_dir ../models/wwm/ --per_gpu_eval_batch_size=3 --per_gpu_train_batch_size=3 \
            --fp16 --fp16_opt_level O2 --evaluate_during_training --logging_steps 1000
        """,
        {
            "name": "wwm",
            "task": {"type": "question-answering", "version_2_with_negative": True},
            "model": {"name_or_path": "bert-large-uncased-whole-word-masking"},
            "dataset": {
                "source": "upload",
                "train": "./squad/train-v2.0.json",
                "validation": "./squad/dev-v2.0.json",
            },
            "training": {
                "num_train_epochs": 2.0,
                "per_device_train_batch_size": 3,
                "per_device_eval_batch_size": 3,
                "learning_rate": 3e-5,
                "precision": "fp16",
                "logging_steps": 1000.0,
                "eval_strategy": "steps",
            },
            "resources": {"gpus": 8},
        },
    ),
    "an evaluation alone": (
        "python run_squad.py --model_type=bert --model_name_or_path org/qa --do_eval "
        "--train_file a.json --predict_file dev.json --per_gpu_eval_batch_size 16 "
        "--learning_rate 1e-5 --output_dir out",
        {
            "name": "out",
            "mode": "evaluate",
            "task": "question-answering",
            "model": {"name_or_path": "org/qa"},
            "dataset": {"source": "upload", "validation": "./dev.json"},
            "training": {"per_device_eval_batch_size": 16, **FP32},
        },
    ),
    "predictions alone": (
        "python run_qa.py --model_name_or_path org/qa --do_predict --test_file test.json "
        "--output_dir out --max_predict_samples 100",
        {
            "name": "out",
            "mode": "predict",
            "task": "question-answering",
            "model": {"name_or_path": "org/qa"},
            "dataset": {"source": "upload", "test": "./test.json", "max_predict_samples": 100},
            "training": FP32,
        },
    ),
    "causal lm on wikitext": (
        r"""
        accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 run_clm.py \
            --model_name_or_path openai-community/gpt2 \
            --dataset_name wikitext \
            --dataset_config_name wikitext-2-raw-v1 \
            --per_device_train_batch_size 8 \
            --per_device_eval_batch_size 8 \
            --do_train \
            --do_eval \
            --block_size 512 \
            --ddp_find_unused_parameters False \
            --output_dir runs/test-clm
        """,
        {
            "name": "test-clm",
            "task": {"type": "causal-lm", "block_size": 512},
            "model": {"name_or_path": "openai-community/gpt2"},
            "dataset": {
                "source": "hub",
                "name": "wikitext",
                "config": "wikitext-2-raw-v1",
                "validation": "validation",
            },
            "training": {"per_device_eval_batch_size": 8, "precision": "bf16"},
            "resources": {
                "gpus": 2,
                "strategy": {"type": "ddp", "find_unused_parameters": False},
            },
        },
    ),
    "causal lm from scratch on a text": (
        "python run_clm.py --model_type gpt2 --tokenizer_name openai-community/gpt2 "
        '--config_overrides="n_embd=1024,n_head=16,scale_attn_weights=false" --train_file in.txt '
        "--do_train --do_eval --no_keep_linebreaks --warmup_ratio 0.05 --optim adafactor "
        "--lr_scheduler_type cosine --output_dir out",
        {
            "name": "out",
            "task": {"type": "causal-lm", "keep_linebreaks": False},
            "model": {
                "config": {
                    "model_type": "gpt2",
                    "config_overrides": {
                        "n_embd": 1024,
                        "n_head": 16,
                        "scale_attn_weights": False,
                    },
                },
                "tokenizer_name": "openai-community/gpt2",
            },
            "dataset": {
                "source": "upload",
                "train": "./in.txt",
                "validation_split_percentage": 5,
            },
            "training": {
                "warmup_steps": 0.05,
                "optim": "adafactor",
                "lr_scheduler_type": "cosine",
                **FP32,
            },
        },
    ),
    "masked lm, line by line": (
        r"""
        torchrun --standalone --nproc-per-node=2 \
          run_mlm.py --model_name_or_path FacebookAI/roberta-base --train_file path/train.txt \
          --validation_file path/valid.txt --do_train --do_eval --line_by_line \
          --mlm_probability 0.2 --max_seq_length 128 --pad_to_max_length \
          --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap RobertaLayer \
          --output_dir runs/test-mlm
        """,
        {
            "name": "test-mlm",
            "task": {
                "type": "masked-lm",
                "mlm_probability": 0.2,
                "line_by_line": True,
                "max_seq_length": 128,
            },
            "model": {"name_or_path": "FacebookAI/roberta-base"},
            "dataset": {
                "source": "upload",
                "train": "./path/train.txt",
                "validation": "./path/valid.txt",
            },
            "training": FP32,
            "resources": {
                "gpus": 2,
                "strategy": {"type": "fsdp", "transformer_layer_cls_to_wrap": ["RobertaLayer"]},
            },
        },
    ),
    "glue": (
        r"""
        export TASK_NAME=mrpc
        # python run_glue.py --task_name rte
        python run_glue.py \
          --model_name_or_path google-bert/bert-base-cased \
          --task_name $TASK_NAME \
          --do_train \
          --do_eval \
          --max_seq_length 128 \
          --per_device_train_batch_size 32 \
          --learning_rate 2e-5 \
          --num_train_epochs 3 \
          --output_dir runs/$TASK_NAME/
        """,
        {
            "name": "mrpc",
            "task": {"type": "text-classification", "max_seq_length": 128},
            "model": {"name_or_path": "google-bert/bert-base-cased"},
            "dataset": {
                "source": "hub",
                "name": "nyu-mll/glue",
                "config": "mrpc",
                "validation": "validation",
                "columns": {"text": "sentence1", "text_pair": "sentence2"},
            },
            "training": {"per_device_train_batch_size": 32, "learning_rate": 2e-5, **FP32},
        },
    ),
    "glue with two validation sets": (
        "python run_glue.py --model_name_or_path org/m --task_name MNLI --do_train "
        "--evaluation_strategy steps --save_strategy steps --eval_steps 500 "
        "--load_best_model_at_end true --metric_for_best_model accuracy --output_dir out "
        "--gradient_checkpointing --group_by_length",
        {
            "name": "out",
            "task": "text-classification",
            "model": {"name_or_path": "org/m"},
            "dataset": {
                "source": "hub",
                "name": "nyu-mll/glue",
                "config": "mnli",
                "validation": {
                    "matched": "validation_matched",
                    "mismatched": "validation_mismatched",
                },
                "columns": {"text": "premise", "text_pair": "hypothesis"},
            },
            "training": {
                "eval_strategy": "steps",
                "eval_steps": 500.0,
                "load_best_model_at_end": True,
                "metric_for_best_model": "matched_accuracy",
                "activation_checkpointing": True,
                "train_sampling_strategy": "group_by_length",
                **FP32,
            },
        },
    ),
    "glue on a number": (
        "python run_glue.py --model_name_or_path org/m --task_name stsb --do_train "
        "--output_dir out",
        {
            "name": "out",
            "task": {"type": "text-classification", "problem_type": "regression"},
            "model": {"name_or_path": "org/m"},
            "dataset": {
                "source": "hub",
                "name": "nyu-mll/glue",
                "config": "stsb",
                "columns": {"text": "sentence1", "text_pair": "sentence2"},
            },
            "training": FP32,
        },
    ),
    "ner": (
        r"""
        python run_ner.py --model_name_or_path google-bert/bert-base-uncased \
          --dataset_name conll2003 --output_dir runs/test-ner --do_train --do_eval --do_predict \
          --label_all_tokens --return_entity_level_metrics
        """,
        {
            "name": "test-ner",
            "task": {"type": "token-classification", "label_all_tokens": True},
            "model": {"name_or_path": "google-bert/bert-base-uncased"},
            "dataset": {
                "source": "hub",
                "name": "conll2003",
                "validation": "validation",
                "test": "test",
                "columns": {"tags": "ner_tags"},
            },
            "training": FP32,
        },
    ),
    "summarization with T5": (
        r"""
        deepspeed --num_gpus=2 run_summarization.py \
            --model_name_or_path google-t5/t5-small \
            --do_train \
            --do_eval \
            --dataset_name cnn_dailymail \
            --dataset_config_name "3.0.0" \
            --source_prefix "summarize: " \
            --output_dir runs/tst-summarization \
            --per_device_train_batch_size=4 \
            --per_device_eval_batch_size=4 \
            --overwrite_output_dir \
            --predict_with_generate
        """,
        {
            "name": "tst-summarization",
            "task": {"type": "summarization", "source_prefix": "summarize: "},
            "model": {"name_or_path": "google-t5/t5-small"},
            "dataset": {
                "source": "hub",
                "name": "cnn_dailymail",
                "config": "3.0.0",
                "validation": "validation",
                "columns": {"text": "article", "summary": "highlights"},
            },
            "training": {
                "per_device_train_batch_size": 4,
                "per_device_eval_batch_size": 4,
                **FP32,
            },
            "resources": {"gpus": 2},
        },
    ),
    "summarization of one's own columns": (
        "python run_summarization.py --model_name_or_path org/bart --do_train "
        "--train_file a.csv --text_column Body --summary_column Title --max_source_length 512 "
        "--max_target_length 64 --val_max_target_length 32 --num_beams 4 --output_dir out",
        {
            "name": "out",
            "task": {
                "type": "summarization",
                "max_source_length": 512,
                "max_target_length": 64,
                "val_max_target_length": 32,
                "num_beams": 4,
                "predict_with_generate": False,
            },
            "model": {"name_or_path": "org/bart"},
            "dataset": {
                "source": "upload",
                "train": "./a.csv",
                "columns": {"text": "Body", "summary": "Title"},
            },
            "training": FP32,
        },
    ),
    "translation with mBART": (
        r"""
        python run_translation.py --model_name_or_path facebook/mbart-large-en-ro --do_train \
          --do_eval --dataset_name wmt16 --dataset_config_name ro-en --source_lang en_XX \
          --target_lang ro_RO --forced_bos_token ro_RO --predict_with_generate \
          --label_smoothing_factor 0.1 --generation_max_length 100 --generation_num_beams 5 \
          --output_dir out --push_to_hub --hub_model_id team/mbart --hub_strategy checkpoint
        """,
        {
            "name": "out",
            "task": {
                "type": "translation",
                "source_lang": "en_XX",
                "target_lang": "ro_RO",
                "forced_bos_token": "ro_RO",
                "generation_max_length": 100,
                "num_beams": 5,
            },
            "model": {"name_or_path": "facebook/mbart-large-en-ro"},
            "dataset": {
                "source": "hub",
                "name": "wmt16",
                "config": "ro-en",
                "validation": "validation",
            },
            "training": {"label_smoothing_factor": 0.1, **FP32},
            "hub": {"model_id": "team/mbart", "strategy": "checkpoint"},
        },
    ),
    "TRL: conversations with QLoRA": (
        r"""
        accelerate launch --num_processes 2 trl/scripts/sft.py \
          --model_name_or_path Qwen/Qwen2-0.5B \
          --dataset_name trl-lib/Capybara --dataset_train_split train[:10%] \
          --eval_strategy steps --eval_steps 100 \
          --learning_rate 2.0e-4 --num_train_epochs 1 --packing --assistant_only_loss \
          --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
          --use_peft --lora_r 32 --lora_alpha 16 --lora_target_modules all-linear \
          --load_in_4bit --use_bnb_nested_quant --attn_implementation flash_attention_2 \
          --output_dir Qwen2-0.5B-SFT
        """,
        {
            "name": "Qwen2-0.5B-SFT",
            "task": {"type": "chat", "max_length": 1024, "packing": "bfd"},
            "model": {"name_or_path": "Qwen/Qwen2-0.5B"},
            "dataset": {
                "source": "hub",
                "name": "trl-lib/Capybara",
                "train": "train[:10%]",
                "validation": "test",
            },
            "training": {
                "learning_rate": 2e-4,
                "num_train_epochs": 1.0,
                "eval_strategy": "steps",
                "eval_steps": 100,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 8,
            },
            "peft": {
                "method": "lora",
                "r": 32,
                "lora_alpha": 16,
                "lora_dropout": 0.05,
                "target_modules": "all-linear",
                "quantization": {"bits": 4, "double_quant": True},
            },
            "resources": {"gpus": 2},
        },
    ),
    "TRL: its own command": (
        "trl sft --model_name_or_path org/m --dataset_name org/d --dataset_config de "
        "--max_length 2048 --num_processes 4 --bf16 False --gradient_checkpointing False",
        {
            "task": {"type": "chat", "max_length": 2048, "train_on": "all"},
            "model": {"name_or_path": "org/m"},
            "dataset": {"source": "hub", "name": "org/d", "config": "de"},
            "training": {"learning_rate": 2e-5, **FP32},
            "resources": {"gpus": 4},
        },
    ),
    "TRL: preferences": (
        "trl dpo --model_name_or_path org/m --dataset_name org/pairs --loss_type ipo --beta 0.5 "
        "--max_length 768 --precompute_ref_log_probs False --output_dir runs/dpo",
        {
            "name": "dpo",
            "task": {"type": "preference", "loss_type": "ipo", "beta": 0.5, "max_length": 768},
            "model": {"name_or_path": "org/m"},
            "dataset": {"source": "hub", "name": "org/pairs"},
            "training": {"learning_rate": 1e-6},
        },
    ),
    "TRL: single answers": (
        "trl kto --model_name_or_path org/m --dataset_name org/d --desirable_weight 1.5",
        {
            "task": {
                "type": "preference",
                "loss_type": "kto",
                "max_length": 1024,
                "desirable_weight": 1.5,
            },
            "model": {"name_or_path": "org/m"},
            "dataset": {"source": "hub", "name": "org/d"},
            "training": {"learning_rate": 1e-6},
        },
    ),
    "TRL: a reward model": (
        "python trl/scripts/reward.py --model_name_or_path org/m --dataset_name org/pairs "
        "--center_rewards_coefficient 0.01 --eval_strategy epoch",
        {
            "task": {"type": "reward", "max_length": 1024, "center_rewards_coefficient": 0.01},
            "model": {"name_or_path": "org/m"},
            "dataset": {"source": "hub", "name": "org/pairs", "validation": "test"},
            "training": {"learning_rate": 1e-4, "eval_strategy": "epoch"},
        },
    ),
}
