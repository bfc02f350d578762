"""Workloads whose training loop is a library's own."""

import itertools
import os
import queue
import tempfile
import threading

from registry import torch_module, workload


@workload("trainer")
def trainer():
    """The training loop of transformers, with its data loader, mixed precision and gradient accumulation."""
    torch = torch_module()
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    words = torch.randint(0, 1000, (4096, 128), generator=torch.Generator().manual_seed(2))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=128, n_layer=4, n_embd=256, n_head=4))
    wanted, done = queue.SimpleQueue(), queue.SimpleQueue()

    class Steps(TrainerCallback):
        def on_step_end(self, *arguments, model, **others):
            done.put(model.transformer.wte.weight.detach().double().sum())
            wanted.get()

    arguments = TrainingArguments(
        output_dir=os.path.join(tempfile.mkdtemp(), "out"),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=10**9,
        bf16=True,
        dataloader_num_workers=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    rows = [{"input_ids": row, "labels": row} for row in words]
    loop = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Steps()])
    threading.Thread(target=loop.train, daemon=True).start()

    def step(i):
        if i:
            wanted.put(None)
        return done.get(timeout=300)

    return step


@workload("timm-train")
def timm_train():
    """timm's loader copies ahead on a stream of its own, out of pinned memory."""
    torch = torch_module()
    import timm.data
    import timm.optim
    import torchvision

    pictures = torchvision.datasets.FakeData(size=512, image_size=(3, 160, 160))
    loader = timm.data.create_loader(pictures, (3, 160, 160), 16, is_training=True, no_aug=True, num_workers=2, persistent_workers=False)
    model = timm.create_model("resnet26", num_classes=10).cuda().to(memory_format=torch.channels_last)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
    scaler = torch.amp.GradScaler()
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def step(i):
        x, y = next(batches)
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step
