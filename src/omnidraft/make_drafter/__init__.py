"""Make a drafter from a language model: teacher text, a smaller vocabulary, fewer layers, distillation.

settings      shape, teacher text and training, as a user chooses them
teacher_text  what one or more models answer, with the likeliest tokens at each position
shards        that text in files
vocabulary    which tokens the drafter keeps, by what they save on the text
cut           the model with those tokens and some of the layers
training      its distillation on the text
make          cut and training in a folder that holds the text, resumable
"""
