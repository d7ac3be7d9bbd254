"""Model families: prompt format, image preprocessing, coordinate format and checkpoint loading."""
